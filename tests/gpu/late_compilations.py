"""Does anything compile after the warm-up? Counts what Triton compiles, or fetches compiled, while all rows are run."""

import torch
import triton

from tests.kernels.row_counts import run_every_count, warm_up


def compilations_after_warm_up(device: torch.device) -> list[str]:
    """The kernels that were compiled, or read from the cache on disk, after each bucket of rows had run once."""
    warm_up(device)
    compiled: list[str] = []

    def note(*, src: object, **_: object) -> None:
        compiled.append(str(getattr(src, "name", src)))

    triton.knobs.compilation.listener = note
    try:
        run_every_count(device)
        torch.cuda.synchronize()
    finally:
        triton.knobs.compilation.listener = None
    return compiled
