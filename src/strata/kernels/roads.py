"""Which road the kernels take: their torch twins everywhere, or Triton where the tensors lie on a GPU.

And whether kernels start while the one before still runs. Knows no kernel. Both are set for a whole process, by the
settings `gpu_path` and `dependent_launches`.
"""

import torch

_forced = False
_launches_are_dependent = True


def force_reference(is_forced: bool) -> None:
    """From now on take the twins on every device, or on the CPU alone."""
    global _forced
    _forced = is_forced


def is_reference_on(device: torch.device | str) -> bool:
    """Whether ops on this device are computed by their twins."""
    return _forced or torch.device(device).type == "cpu"


def takes_reference(tensor: torch.Tensor) -> bool:
    """Whether an op on this tensor is computed by its twin."""
    return is_reference_on(tensor.device)


def use_dependent_launches(are_used: bool) -> None:
    """From now on launch kernels as dependents where the GPUs can, or never. Graphs stay as they were captured."""
    global _launches_are_dependent
    _launches_are_dependent = are_used


def uses_dependent_launches() -> bool:
    """Whether kernels are launched as dependents where the GPUs can."""
    return _launches_are_dependent
