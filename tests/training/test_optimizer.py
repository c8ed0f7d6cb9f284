"""Which parameters Muon moves, which Adam, and how far. Knows a model of a tiny shape; knows no data."""

import pytest
import torch

from tests.training.test_export import TINY
from training.language import PocketModel
from training.optimizer import Muon, Optimizer, is_matrix, orthogonalised

TABLES_AND_GATES = (
    "embed_tokens",
    "ngram_embedding",
    "mlp.gate.weight",
    "shared_expert_gate",
    "in_proj_a",
    "in_proj_b",
    "block_inject_weight",
    "conv1d",
)


@pytest.fixture
def model() -> PocketModel:
    torch.manual_seed(1)
    return PocketModel(TINY)


def optimizer_of(model: PocketModel) -> Optimizer:
    return Optimizer(model, matrix_rate=1e-2, other_rate=1e-3, table_rate=2e-3, decay=0.1)


def set_gradients(model: PocketModel) -> None:
    generator = torch.Generator().manual_seed(2)
    for parameter in model.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator)


def test_every_parameter_belongs_to_one_optimizer(model: PocketModel) -> None:
    optimizer = optimizer_of(model)
    by_muon = [id(p) for _, group in optimizer.muon.groups for p in group]
    by_adam = [id(p) for group in optimizer.adam.param_groups for p in group["params"]]
    assert sorted(by_muon + by_adam) == sorted(id(p) for p in model.parameters())
    for name, parameter in model.named_parameters():
        small = parameter.ndim == 1 or any(part in name for part in TABLES_AND_GATES) or ".indexer." in name
        assert (id(parameter) in by_adam) == small, name
        if not small:
            assert is_matrix(name, parameter)
    assert {name for name, p in model.named_parameters() if id(p) in by_muon and "norm" in name} == set()


def test_orthogonalised_matrices_have_equal_singular_values() -> None:
    stack = torch.randn(3, 64, 128, generator=torch.Generator().manual_seed(0))
    values = torch.linalg.svdvals(orthogonalised(stack).float())
    assert values.min() > 0.6 and values.max() < 1.3  # the quintic's own band


@pytest.mark.parametrize(("shape", "matrices"), [((128, 64), 1), ((64, 128), 1), ((3, 2 * 64, 128), 6)])
def test_muon_moves_a_matrix_by_its_orthogonalised_gradient(shape: tuple[int, ...], matrices: int) -> None:
    """An expert tensor gate_up counts as two matrices an expert: gate and up."""
    name = "experts.gate_up_proj" if len(shape) == 3 else "weight"
    parameter = torch.nn.Parameter(torch.randn(shape, generator=torch.Generator().manual_seed(0)))
    before = parameter.detach().clone()
    parameter.grad = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    Muon([(name, parameter)], decay=0.1).step(rate=0.01)
    moved = (before * (1 - 0.01 * 0.1) - parameter.detach()) / (0.01 * 0.2 * 128**0.5)
    parts = moved.reshape(matrices, *([64, 128] if len(shape) == 3 else shape))
    gradients = parameter.grad.reshape(parts.shape)
    values = torch.linalg.svdvals(parts)
    assert values.min() > 0.6 and values.max() < 1.3
    for part, gradient in zip(parts, gradients, strict=True):
        u, _, v = torch.linalg.svd(gradient, full_matrices=False)
        assert torch.nn.functional.cosine_similarity(part.flatten(), (u @ v).flatten(), dim=0) > 0.98


def test_a_step_moves_everything_and_the_indexer_stage_only_the_indexers(model: PocketModel) -> None:
    optimizer = optimizer_of(model)
    for indexer_only in (False, True):
        before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
        set_gradients(model)
        optimizer.step(scale=1.0, indexer_only=indexer_only)
        for name, parameter in model.named_parameters():
            should_move = not indexer_only or ".indexer." in name
            assert torch.equal(parameter.detach(), before[name]) != should_move, name
            assert parameter.grad is None
