"""Division without branches held against a device's own, for the interpreter and for a GPU. Knows no kernel's use."""

import torch

BLOCK = 1024


def check_division(device: torch.device, count: int) -> None:
    """Raise AssertionError unless `count` quotients of each kind have the bits of the device's own division."""
    from tests.kernels.triton_gate_probes import division_kernel

    generator = torch.Generator().manual_seed(count)

    def numbers(least: int, most: int) -> torch.Tensor:
        """Any mantissa, exponents from `least` to below `most`."""
        mantissas = torch.randint(1 << 23, (count,), generator=generator)
        exponents = torch.randint(least + 127, most + 127, (count,), generator=generator)
        return (exponents << 23 | mantissas).int().view(torch.float32)

    one, quarter, edge = torch.ones(count), torch.full((count,), 0.25), torch.full((count,), 2.0 - 2.0**-23)
    every = (torch.arange(count) % (1 << 23) | 0x3F800000).int().view(torch.float32)
    pairs = ((numbers(-20, 20), numbers(-20, 20)), (one, every), (quarter, numbers(-2, 125)), (one, edge))
    for a, b in pairs:
        found = [torch.empty(count, device=device) for _ in range(4)]
        division_kernel[(count // BLOCK,)](a.to(device), b.to(device), *found, BLOCK=BLOCK)
        for name, number in (("a / b", 0), ("a / 127", 2)):
            ours, own = (each.cpu().view(torch.int32) for each in found[number : number + 2])
            wrong = (ours != own).nonzero()
            first = [] if wrong.numel() == 0 else [each[wrong[0]].item() for each in (a, b)]
            assert not first, f"{wrong.numel()} of {count} quotients {name} are wrong, the first of a, b = {first}"
