"""Slots' states on a device: what they take, and that a slot that is moved or reset takes its own part alone along."""

import pytest
import torch

from strata.models import qwen4_exp
from strata.models.device.sizes import StateSizes, cells_of, state_sizes
from strata.models.device.state import DeviceState
from strata.models.families import family_of
from strata.quant.cell_codes import CellKind
from tests.models.test_qwen3_contract import even_config
from tests.models.tiny_qwen4_exp import END_OF_TEXT, tiny_config

CPU = torch.device("cpu")


def sizes() -> StateSizes:
    return state_sizes(qwen4_exp.parse_config(tiny_config()))


def filled(state: DeviceState) -> DeviceState:
    generator = torch.Generator().manual_seed(1)
    for tensor in state.tensors:
        tensor.copy_(torch.randint(0, 9, tensor.shape, generator=generator))
    return state


def test_bytes_are_those_of_the_tensors() -> None:
    for config in (even_config("qwen3_5_moe"), even_config("llama"), tiny_config()):
        found = state_sizes(family_of(config).parse_config(config))
        for kind in CellKind:
            state = DeviceState.empty(found, 3, 700, kind, CPU)
            assert state.bytes_used() == found.state_bytes(3, 700, kind)
    assert cells_of(700) == 1024


@pytest.mark.parametrize("kind", [CellKind.BF16, CellKind.K8V4])
def test_a_slot_that_is_copied_is_the_other_and_leaves_the_rest(kind: CellKind) -> None:
    state = filled(DeviceState.empty(sizes(), 3, 100, kind, CPU))
    before = [tensor.clone() for tensor in state.tensors]
    state.copy(2, 0, 50)
    for found, kept in zip(state.tensors, before, strict=True):
        axis = 0 if found is state.history else 1
        assert torch.equal(found.select(axis, 1), kept.select(axis, 1))
        assert torch.equal(found.select(axis, 2), kept.select(axis, 2))
    heads = (*state.keys.tensors, *state.values.tensors)
    for found, kept in zip(heads, before[2:], strict=False):
        assert torch.equal(found[:, 0, :50], kept[:, 2, :50])
        assert torch.equal(found[:, 0, 50:], kept[:, 0, 50:])
    assert torch.equal(state.delta[:, 0], before[0][:, 2])
    assert torch.equal(state.pooled[:, 0, :12], before[3 + len(heads)][:, 2, :12])


@pytest.mark.parametrize("kind", [CellKind.BF16, CellKind.Q4])
def test_a_saved_slot_comes_back(kind: CellKind) -> None:
    state = filled(DeviceState.empty(sizes(), 2, 100, kind, CPU))
    before = [tensor.clone() for tensor in state.tensors]
    saved = state.save(1, 60)
    state.reset(1)
    assert state.history[1].tolist() == [END_OF_TEXT, END_OF_TEXT]
    assert float(state.delta[:, 1].abs().sum()) == 0
    state.restore(1, saved)
    assert all(torch.equal(found, kept) for found, kept in zip(state.tensors, before, strict=True))
    assert saved.bytes_used() < state.bytes_used()
