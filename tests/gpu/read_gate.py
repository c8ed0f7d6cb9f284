"""The gate of the kernels of reads on a GPU: every code and launch against the twins, bits over rows, parts, launches.

Knows no speed. A job is a picklable call that raises AssertionError.
"""

from collections.abc import Callable
from functools import partial

import torch

from strata.kernels.read_experts import combine_ranks, reference, route_many
from strata.kernels.read_experts.launches import DOWN_LAUNCH, HIDDEN_LAUNCH, ExpertLaunch
from strata.kernels.read_products.launches import ReadLaunch
from strata.quant.layout import Code
from tests.kernels.random_matrices import KINDS, on_device, random_matrix
from tests.kernels.read_cases import ExpertCase, ProductCase, random_x

KIND = {kind.name: kind for kind in KINDS}
DENSE_LAUNCHES = (
    ReadLaunch(rows=128, outputs=128, groups=2), ReadLaunch(rows=64),
    ReadLaunch(rows=128, more_rows=32, outputs=256, warps=8, groups=2, blocks=1),
)  # fmt: skip
EXPERT_LAUNCHES = (
    HIDDEN_LAUNCH, DOWN_LAUNCH, ExpertLaunch(128, 0, warps=4, stages=2),
    ExpertLaunch(128, 64, warps=4, groups=2, overlap=False, blocks=1),
)  # fmt: skip
COUNTS = (0, 1, 63, 64, 65, 200, 7, 129, 160, 161, 192, 193, 385, 0, 80)  # places of each expert
# Gate, up and down: one launch for gate and up, several, codes of every sort.
EXPERTS = (
    ("q4_0", "q4_0", "q8_0"), ("q4_k", "q4_k", "q6_k"), ("bf16", "bf16", "bf16"), ("nvfp4", "q8_0", "mxfp4"),
    ("iq4_xs", "iq4_xs", "q2_0"),
)  # fmt: skip


def check_products(name: str) -> None:
    """One kind of matrix: decoded weights, rows among others, launches."""
    device, kind = torch.device("cuda"), KIND[name]
    check_decoding(name)
    columns = 288 if 288 % kind.step == 0 else 512 if kind.step == 256 else 320
    subsets = [[5], [199, 0, 77], list(range(64)), list(range(130, 195)), list(range(199, -1, -1))]
    launches = DENSE_LAUNCHES if name in ("q4_0", "q8_0") else DENSE_LAUNCHES[:1]
    ProductCase(kind, 150, columns, 200).check(device, subsets, launches)
    ProductCase(kind, 144, 2560, 300, torch.bfloat16).check(device, [[5], list(range(100, 163))], launches[:1])
    if kind.code.is_float:
        ProductCase(kind, 19, 13, 3).check(device, [[2]])


def check_decoding(name: str) -> None:
    """Products with the unit matrix are the weights themselves, by pairs and by the definition's steps."""
    from strata.kernels.read_products import triton

    device, kind = torch.device("cuda"), KIND[name]
    matrix = random_matrix(3, kind.layout(144, 512))
    values = matrix.decode().T
    wanted = values if kind.code in (Code.F32, Code.F16) else values.to(torch.bfloat16).float()
    unit = torch.eye(512, dtype=torch.bfloat16, device=device)
    for by_pairs in (True, False):
        found = torch.empty(512, 144, device=device)
        triton.multiply(on_device(matrix, device), unit, found, triton.dense_launch(512), by_pairs)
        assert torch.equal(found.cpu(), wanted), f"{name}: decoded weights, by_pairs {by_pairs}"


def check_experts(names: tuple[str, str, str]) -> None:
    """Experts of three kinds: results, launches, cuts of rows and of experts."""
    from strata.kernels.read_experts.triton import experts_down, experts_hidden

    calls: list[Callable[..., object]] = []
    for launch in EXPERT_LAUNCHES:
        calls += [partial(experts_hidden, launch=launch), partial(experts_down, launch=launch)]
    case = ExpertCase(*(KIND[name] for name in names), 512, 256, COUNTS)
    case.check(torch.device("cuda"), calls, ranks=4)


def check_rows(rows: int, experts: int, ranks: int, hidden: int) -> None:
    """Routing and the sum of ranks of some rows."""
    device, generator = torch.device("cuda"), torch.Generator().manual_seed(rows)
    logits = (torch.randn(rows, experts + 3, generator=generator) * 3)[:, 1:-2]
    logits[:, ::3] = logits[:, ::3].round()  # ties
    ids, weights = torch.empty(rows, ranks, dtype=torch.int32), torch.empty(rows, ranks)
    for normalize in (True, False):
        reference.route_many(logits, normalize, ids, weights)
        found, shares = torch.empty_like(ids, device=device), torch.empty_like(weights, device=device)
        route_many(logits.to(device), normalize, found, shares)
        assert torch.equal(found.cpu(), ids), f"ids of {rows} rows"
        assert torch.allclose(shares.cpu(), weights, rtol=1e-6, atol=0), f"weights of {rows} rows"
    by_rank, shared = random_x(1, rows * ranks, hidden, torch.device("cpu")), random_x(2, rows, hidden, device)
    gates, wanted, out = torch.rand(rows), torch.empty(rows, hidden), torch.empty(rows, hidden, device=device)
    by_rank = by_rank.view(rows, ranks, hidden)
    reference.combine_ranks(by_rank, weights, shared.cpu(), gates, wanted)
    combine_ranks(by_rank.to(device), weights.to(device), shared, gates.to(device), out)
    assert torch.equal(out.cpu(), wanted), f"sums of {rows} rows"


def jobs() -> list[Callable[[], None]]:
    """All checks, the longest first."""
    experts: list[Callable[[], None]] = [partial(check_experts, names) for names in EXPERTS]
    rows = [(1, 512, 10, 2560), (777, 512, 10, 2560), (65, 16, 4, 96), (5, 60, 6, 13)]
    return [
        *experts,
        *(partial(check_products, kind.name) for kind in KINDS),
        *(partial(check_rows, *sizes) for sizes in rows),
    ]
