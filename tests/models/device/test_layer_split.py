"""Layers in runs: every layer has one stage, and a split that leaves a stage empty is told what works."""

import pytest

from strata.errors import SettingsError
from strata.models.device.layer_split import LayerSplit, parse_cuts


@pytest.mark.parametrize("cuts", [(), (1,), (5,), (1, 2, 3, 4, 5), (2, 4)])
def test_every_layer_lies_on_the_stage_in_whose_run_it_is(cuts: tuple[int, ...]) -> None:
    split = LayerSplit.of(6, cuts)
    assert [layer for run in split.runs for layer in run] == list(range(6))
    assert all(len(run) for run in split.runs)
    assert len(split.runs) == split.stages == len(cuts) + 1
    assert all(layer in split.runs[split.stage_of_layer(layer)] for layer in range(6))


def test_a_layer_that_is_none_has_no_stage() -> None:
    for layer in (-1, 6):
        with pytest.raises(IndexError, match=f"layer {layer} of a model with 6"):
            LayerSplit.of(6, (3,)).stage_of_layer(layer)


@pytest.mark.parametrize(
    ("layers", "cuts", "told"),
    [
        (6, (0,), r"setting layer_split: 0 cuts in front of layer 0, .* layers 0 to 5: 1 to 5 works"),
        (6, (2, 6), r"setting layer_split: 2,6 cuts in front of layer 6, .* 1 to 5 works"),
        (2, (7,), "layers 0 to 1: 1 works"),
        (1, (1,), "a model of one layer is not split"),
        (6, (4, 2), r"4,2 leaves a stage between 4 and 2 without a layer: .* as in 2,4"),
        (6, (3, 3), r"3,3 leaves a stage between 3 and 3 without a layer: .* as in 3"),
    ],
)
def test_a_split_with_an_empty_stage_is_refused_with_what_works(layers: int, cuts: tuple[int, ...], told: str) -> None:
    with pytest.raises(SettingsError, match=told):
        LayerSplit.of(layers, cuts)


def test_cuts_are_numbers_with_commas_between() -> None:
    assert parse_cuts("13") == (13,)
    assert parse_cuts("13,30") == (13, 30)
    for text in ("", "a", "13,", "13, 30", "-1", "1.5"):
        with pytest.raises(SettingsError, match=r"setting layer_split.*`13,30` makes three"):
            parse_cuts(text)
