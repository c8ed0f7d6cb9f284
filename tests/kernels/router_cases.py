"""Routing by Triton held against its definition, for the interpreter and for a GPU. Knows no expert's bytes."""

from dataclasses import dataclass

import torch

from strata.kernels.router import Routes, SharedGate, reference
from tests.kernels.window_cases import window_of


@dataclass(frozen=True)
class RouterCase:
    """Logits of every size, many of them equal."""

    rows: int
    experts: int
    ranks: int
    hidden: int  # of the shared gate; 0: there is none
    unused: int = 0
    normalize: bool = True

    def check(self, device: torch.device) -> None:
        """Raise AssertionError unless ids and work are equal, and weights within rounding."""
        from strata.kernels.router import triton

        generator = torch.Generator().manual_seed(self.rows + self.experts)
        logits = (torch.randn(self.rows, self.experts + 3, generator=generator) * 3)[:, 1:-2]
        logits[:, ::3] = logits[:, ::3].round()  # ties
        logits[0, :2] = torch.tensor([0.0, -0.0])
        x, gate = torch.randn(2, self.rows, self.hidden, generator=generator)
        window = window_of([(0, self.rows - self.unused)], self.rows, device=device)
        found, wanted = self._room(device), self._room(device)
        where = logits.to(device), window, self.normalize
        shared = SharedGate(x.to(device), gate[0].to(device) * 0.05) if self.hidden else None
        triton.route_rows(*where, found, shared)
        reference.route_rows(*where, wanted, shared)
        assert torch.equal(found.ids, wanted.ids), f"{self}: ids {found.ids} instead of {wanted.ids}"
        for name in ("seats", "starts", "places", "rows"):
            mine, theirs = getattr(found.work, name), getattr(wanted.work, name)
            assert torch.equal(mine, theirs), f"{self}: {name} {mine} instead of {theirs}"
        assert_close(f"{self}: weights", found.weights, wanted.weights)
        if found.shared_weights is not None and wanted.shared_weights is not None:
            assert_close(f"{self}: shared weights", found.shared_weights, wanted.shared_weights)

    def _room(self, device: torch.device) -> Routes:
        """Memory with stale values in it."""
        made = Routes.empty(self.rows, self.ranks, device, self.hidden > 0)
        for tensor in (made.ids, made.work.seats, made.work.starts, made.work.places, made.work.rows):
            tensor.fill_(77)
        made.weights.fill_(float("nan"))
        return made


def assert_close(what: str, found: torch.Tensor, wanted: torch.Tensor) -> None:
    """Within rounding of values at most 1."""
    error = float((found - wanted).abs().max())
    assert error <= 1e-6, f"{what} differ by {error}"


SMALL = (
    RouterCase(1, 6, 2, 64),
    RouterCase(1, 33, 3, 0, unused=1),
    RouterCase(5, 60, 4, 600, unused=2),
    RouterCase(3, 8, 8, 40, normalize=False),
)
PUBLISHED = tuple(
    RouterCase(rows, 512, 10, 2560, unused)
    for rows, unused in ((1, 0), (2, 0), (3, 1), (4, 0), (8, 3), (16, 0), (24, 1), (32, 0))
)
