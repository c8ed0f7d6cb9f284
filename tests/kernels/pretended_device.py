"""A device that is not there: tensors in main memory that refuse what a GPU's tensors refuse. Knows no kernel.

Refused: numpy, and an operation over tensors of both places. What it cannot show: streams, and a GPU's own rounding.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_flatten, tree_map

DEVICE = torch.device("cuda", 0)
_DEVICE_OF = torch.Tensor.device.__get__
_COPIES = (torch.Tensor.copy_, torch.Tensor.to, torch.Tensor.cpu)


class DeviceTensor(torch.Tensor):
    """Lies on the device as far as anybody can tell."""


class _Pretending(TorchFunctionMode):
    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        flat = tree_flatten((args, kwargs))[0]
        held = [each for each in flat if isinstance(each, torch.Tensor)]
        on_device = [isinstance(each, DeviceTensor) for each in held]
        if func is torch.device:
            return func(*args, **kwargs)
        if func == _DEVICE_OF:
            return DEVICE if on_device[0] else torch.device("cpu")
        if func is torch.Tensor.numpy and any(on_device):
            raise TypeError("can't convert cuda:0 device type tensor to numpy")
        sizes = [each for each, is_there in zip(held, on_device, strict=True) if not is_there and each.dim()]
        if any(on_device) and sizes and not _may_cross(func, args):
            raise RuntimeError(f"{func}: expected all tensors to be on the same device")
        kwargs.pop("pin_memory", None)
        is_there = _lands_on_device(func, flat, on_device)
        args, kwargs = tree_map(_without_device, (args, kwargs))
        with torch._C.DisableTorchFunctionSubclass():
            found = func(*args, **kwargs)
        return tree_map(lambda each: _placed(each, is_there, args), found)


def _may_cross(func: Callable[..., Any], args: tuple[Any, ...]) -> bool:
    """Copies do, with slices too; indices in main memory may pick of what lies on the device."""
    if func is torch.Tensor.__getitem__:
        return isinstance(args[0], DeviceTensor)
    if func is torch.Tensor.__setitem__:
        return not any(isinstance(each, torch.Tensor) for each in tree_flatten(args[1])[0])
    return func in _COPIES


def _lands_on_device(func: Callable[..., Any], flat: list[Any], on_device: list[bool]) -> bool:
    if func is torch.Tensor.cpu:
        return False
    named = [
        torch.device(each)
        for each in flat
        if isinstance(each, torch.device) or (isinstance(each, str) and each in ("cpu", "cuda"))
    ]
    return named[0].type == "cuda" if named else any(on_device)


def _without_device(value: Any) -> Any:
    is_there = isinstance(value, torch.device) and value.type == "cuda"
    return torch.device("cpu") if is_there or (isinstance(value, str) and value == "cuda") else value


def _placed(value: Any, is_there: bool, args: tuple[Any, ...]) -> Any:
    if not isinstance(value, torch.Tensor) or isinstance(value, DeviceTensor) == is_there:
        return value
    if any(value is each for each in args):  # as .to gives what lies there already
        value = value.clone()
    return value.as_subclass(DeviceTensor if is_there else torch.Tensor)


@contextmanager
def pretended_device() -> Iterator[torch.device]:
    """Inside the block tensors may be put on the device that is given."""
    with _Pretending():
        yield DEVICE
