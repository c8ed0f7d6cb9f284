"""Experts are packed, shards are joined, and what does not fit together is refused by name."""

from pathlib import Path

import pytest

from strata.errors import WeightFileError
from strata.weights.header import StoredTensor
from strata.weights.layout import build_layout

EXPERTS = "model.layers.0.mlp.experts"
TABLE = "model.layers.1.ple.ple_embedding.ngram_embedding"


def stored(shapes: dict[str, tuple[int, ...]], code: str = "BF16", **codes: str) -> dict[str, StoredTensor]:
    return {name: StoredTensor(name, Path("f"), codes.get(name, code), shape, 0, 0) for name, shape in shapes.items()}


def separate_experts(count: int, width: int = 3, hidden: int = 5) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {}
    for expert in range(count):
        for matrix in ("gate_proj", "up_proj"):
            shapes[f"{EXPERTS}.{expert}.{matrix}.weight"] = (width, hidden)
        shapes[f"{EXPERTS}.{expert}.down_proj.weight"] = (hidden, width)
    return shapes


def test_separate_experts_become_two_packed_tensors() -> None:
    shapes = separate_experts(4)
    backwards = dict(reversed(shapes.items()))
    for given in (shapes, backwards):
        tensors = build_layout(stored(given), None).tensors
        assert {name: found.shape for name, found in tensors.items()} == {
            f"{EXPERTS}.gate_up_proj": (4, 6, 5),
            f"{EXPERTS}.down_proj": (4, 5, 3),
        }
        places = [(piece.stored.name, piece.where) for piece in tensors[f"{EXPERTS}.gate_up_proj"].pieces]
        assert places[2:4] == [
            (f"{EXPERTS}.1.gate_proj.weight", (1, slice(0, 3))),
            (f"{EXPERTS}.1.up_proj.weight", (1, slice(3, 6))),
        ]


def test_shards_are_joined_in_the_order_of_their_numbers() -> None:
    shapes = {f"{TABLE}.shard_{index}.weight": (index + 1, 4) for index in (10, 2, 0, 1, 9, 3, 4, 5, 6, 7, 8)}
    table = build_layout(stored(shapes), None).tensors[f"{TABLE}.weight"]
    assert table.shape == (sum(range(1, 12)), 4)
    assert [piece.stored.shape[0] for piece in table.pieces] == list(range(1, 12))


def test_vision_tensors_are_counted_and_left_out() -> None:
    layout = build_layout(stored({"model.visual.a": (2,), "visual.b": (2,), "lm_head.weight": (2, 2)}), None)
    assert list(layout.tensors) == ["lm_head.weight"]
    assert layout.vision_tensors == 2


def without(shapes: dict[str, tuple[int, ...]], *names: str) -> dict[str, tuple[int, ...]]:
    return {name: shape for name, shape in shapes.items() if name not in names}


W, S = f"{EXPERTS}.down_proj", f"{EXPERTS}.down_proj_scale_inv"
DISAGREEING = {
    "an expert in the middle": (without(separate_experts(3), f"{EXPERTS}.1.down_proj.weight"), "expert 1 is missing"),
    "the first expert": (without(separate_experts(3), f"{EXPERTS}.0.up_proj.weight"), "expert 0 is missing"),
    "one half of the last": (without(separate_experts(3), f"{EXPERTS}.2.up_proj.weight"), "incomplete"),
    "every up projection": (
        without(separate_experts(2), f"{EXPERTS}.0.up_proj.weight", f"{EXPERTS}.1.up_proj.weight"),
        "no expert has a tensor up_proj",
    ),
    "experts of two widths": (separate_experts(3) | {f"{EXPERTS}.1.up_proj.weight": (4, 5)}, "alike"),
    "an expert of another width": (separate_experts(3) | {f"{EXPERTS}.1.down_proj.weight": (5, 4)}, "that of 0 is"),
    "experts that are no matrices": ({f"{EXPERTS}.0.down_proj.weight": (5,)}, "not a matrix"),
    "packed and separate": (separate_experts(2) | {f"{EXPERTS}.down_proj": (2, 5, 3)}, "more than once"),
    "two prefixes": ({"model.norm.weight": (3,), "model.language_model.norm.weight": (3,)}, "more than once"),
    "one index written twice": (
        {f"{TABLE}.shard_0.weight": (3, 4), f"{TABLE}.shard_00.weight": (3, 4)},
        "more than once",
    ),
    "a shard in the middle": ({f"{TABLE}.shard_{i}.weight": (3, 4) for i in (0, 2)}, "shard 1 is missing"),
    "shards of two widths": ({f"{TABLE}.shard_{i}.weight": (3, 4 + i) for i in (0, 1)}, "shard 1"),
    "an absurd index": ({f"{TABLE}.shard_{'9' * 40}.weight": (3, 4)}, "shard 0 is missing"),
}


@pytest.mark.parametrize("what", DISAGREEING)
def test_pieces_that_do_not_fit_together_are_named(what: str) -> None:
    shapes, words = DISAGREEING[what]
    with pytest.raises(WeightFileError, match=words):
        build_layout(stored(shapes), None)


def test_scales_must_fit_their_weights() -> None:
    def layout(shapes: dict[str, tuple[int, ...]], block: tuple[int, int] | None = (4, 4), **codes: str) -> None:
        build_layout(stored(shapes, "F8_E4M3", **{S: "F32"} | codes), block)

    layout({W: (2, 5, 3), S: (2, 2, 1)})
    for shapes, block, codes, words in (
        ({W: (2, 5, 3)}, (4, 4), {}, "scales .* are missing"),
        ({W: (2, 5, 3), S: (2, 1, 1)}, (4, 4), {}, r"needs scales of shape \[2, 2, 1\]"),
        ({W: (2, 5, 3), S: (2, 2, 1)}, None, {}, "no quantization_config"),
        ({W: (2, 5, 3), S: (2, 2, 1)}, (4, 4), {W: "BF16"}, "only F8_E4M3 has them"),
        ({W: (2, 5, 3), S: (2, 2, 1)}, (4, 4), {S: "I32"}, "scales stored as I32"),
        ({S: (2, 2, 1)}, (4, 4), {}, "which no file holds"),
        ({"a.weight": (5,), "a.weight_scale_inv": (2,)}, (4, 4), {"a.weight_scale_inv": "F32"}, "need a matrix"),
    ):
        with pytest.raises(WeightFileError, match=words):
            layout(shapes, block, **codes)
