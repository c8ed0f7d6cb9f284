"""Sizes and addresses reach the library as config and weights say; states show where their tensors are."""

import torch

from strata.models.base import LogitRows, Segment
from strata.models.fast.decoder import describe_model
from strata.models.fast.parts import Kept, describe_dense_mlp
from strata.models.fast.states import SlotRows, final_states, parts_of, reserve_cells, state_pointers
from tests.models.fast.twins import needs_library, packed_model

pytestmark = needs_library


def test_sizes_reach_the_library_as_the_config_says() -> None:
    model = packed_model("llama")
    shape = describe_model(model, Kept())
    assert (shape.hidden, shape.layer_count, shape.streams) == (model.config.hidden_size, model.config.num_layers, 1)
    assert shape.embedding.outputs == shape.head.outputs == model.vocabulary_size
    weights = model.layers[0].weights.mlp
    mlp = describe_dense_mlp(Kept(), weights)
    assert (mlp.width, mlp.router.count, mlp.gate_up.count) == (weights.down.shape[1], 0, 2)


def test_vectors_are_kept_as_float32_and_integers_as_they_are() -> None:
    kept = Kept()
    assert kept.pointer(None) is None
    values = torch.tensor([1, 2])
    assert kept.pointer(values) == values.data_ptr()
    assert kept.pointer(torch.ones(2, dtype=torch.bfloat16)) not in (None, values.data_ptr())
    assert kept.table(lambda row_ids: row_ids).count == 0  # its rows come with each window


def test_states_show_their_tensors_and_make_room_before_they_do() -> None:
    model = packed_model("qwen4_exp")
    state = model.new_state()
    model.read([Segment(state, torch.arange(9))], LogitRows.NONE)
    slot = SlotRows(9, state.layers, torch.arange(600))
    reserve_cells(slot, 600, model.config.indexer.ratio)
    pointers = state_pointers(state.layers)
    each = len(pointers) // len(state.layers)
    assert each == 10  # StrataLayerState
    for index, layer in enumerate(state.layers):
        mixer, ngram = parts_of(layer)
        keys, conv_tail, history = pointers[each * index], pointers[each * index + 6], pointers[each * index + 8]
        assert (history is None) == (ngram is None)
        if hasattr(mixer, "keys"):
            assert (keys, conv_tail) == (mixer.keys.codes.cells.data_ptr(), None)
            assert mixer.keys.codes.cells.shape[0] >= 609 and mixer.keys.count == 9
        else:
            assert (keys, conv_tail) == (None, mixer.conv_tail.data_ptr())
    finals = final_states([slot, slot])
    assert [final is None for final in finals] == [hasattr(parts_of(layer)[0], "keys") for layer in state.layers]
