"""Which program of several ends last, and may then read what all of them wrote. Knows no kernel."""
# mypy: allow-untyped-defs, no-check-untyped-defs

import triton
import triton.language as tl


@triton.jit
def arrives_last(arrivals, programs):
    """Whether all other of these `programs` have come here: what they had stored before can be read from now on.

    To be read past the multiprocessor's own cache (".cg"). `arrivals` int32 is 0 before the first one and again after
    the last one, for the next launch. (A launch that was broken off leaves a context that launches nothing any more, so
    no count is ever left half.)
    """
    tl.debug_barrier()  # all threads' stores lie before the one thread's release
    before = tl.atomic_add(arrivals, 1, sem="acq_rel", scope="gpu")
    is_last = before == programs - 1
    if is_last:
        tl.store(arrivals, 0)
    return is_last
