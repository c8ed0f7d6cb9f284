"""Programs that count each other (strata.kernels.arrivals), for the interpreter and for a GPU."""

import torch

GROUPS = 7


def check_arrivals(device: torch.device, turns: int) -> None:
    """Raise AssertionError unless in every turn one program of each group is last and reads what all have written."""
    from tests.kernels.triton_gate_probes import arrivals_kernel

    arrivals = torch.zeros(GROUPS, dtype=torch.int32, device=device)
    for turn in range(turns):
        programs = 1 + turn % 16
        written = torch.full((GROUPS, 16), -1, dtype=torch.int32, device=device)
        sums, lasts = (torch.zeros(GROUPS, dtype=torch.int32, device=device) for _ in range(2))
        arrivals_kernel[(programs, GROUPS)](written, arrivals, sums, lasts)
        wanted = torch.arange(GROUPS) * 100 * programs + programs * (programs - 1) // 2
        assert sums.tolist() == wanted.tolist(), f"turn {turn}: {sums.tolist()}, not {wanted.tolist()}"
        assert lasts.tolist() == [1] * GROUPS, f"turn {turn}: {lasts.tolist()} were last"
        assert not bool(arrivals.any()), f"turn {turn}: {arrivals.tolist()} are left"
