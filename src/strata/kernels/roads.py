"""Which road the kernels take: their torch twins everywhere, or Triton where the tensors lie on a GPU.

Knows no kernel. The twins are forced for a whole process, by the setting `gpu_path`.
"""

import torch

_forced = False


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
