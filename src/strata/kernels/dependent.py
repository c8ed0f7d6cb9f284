"""Kernels that start while the one before them still runs (CUDA's programmatic dependent launch, from Hopper on).

A kernel's start, about a microsecond, then hides behind its predecessor's end. Why no value can be read too early:
every kernel launched with `dependent_options()` calls `begin_dependent` (or `wait_for_predecessor`) in every program
before it touches memory that any kernel writes. That waits until the kernel before it has ended and its writes can be
seen; that one had waited in its turn, so everything before it has ended too. Launches that are not ours (copies,
torch's kernels) neither start early nor let others start early, and the first kernel of a graph waits for all that lies
before the graph in its stream. Knows no kernel.
"""
# mypy: allow-untyped-defs, no-check-untyped-defs

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from strata.kernels.roads import uses_dependent_launches

LEAST_CAPABILITY = (9, 0)


def _has_dependent_launches() -> bool:
    """Whether every GPU of this process knows the two instructions."""
    devices = range(torch.cuda.device_count())
    return len(devices) > 0 and all(torch.cuda.get_device_capability(device) >= LEAST_CAPABILITY for device in devices)


# A constant of the kernels' code, which Triton takes into the keys of what it has compiled. Elsewhere than on such GPUs
# (in the interpreter too) the functions below are empty. A kernel that is not launched as a dependent passes them by.
HAS_DEPENDENT_LAUNCHES = tl.constexpr(_has_dependent_launches())


def dependent_options() -> dict[str, bool]:
    """Options of a launch whose kernel begins with `begin_dependent` or `wait_for_predecessor`."""
    return {"launch_pdl": True} if HAS_DEPENDENT_LAUNCHES and uses_dependent_launches() else {}


@triton.jit
def begin_dependent():
    """First in a kernel: the next one may start, and everything before has ended when this returns."""
    allow_dependents()
    wait_for_predecessor()


@triton.jit
def allow_dependents():
    """The next kernel may start (and wait) once every program of this one has come here."""
    if HAS_DEPENDENT_LAUNCHES:
        gdc_launch_dependents()


@triton.jit
def wait_for_predecessor():
    """Until everything before has ended. What no kernel writes, like weights, may be asked for before this."""
    if HAS_DEPENDENT_LAUNCHES:
        gdc_wait()
