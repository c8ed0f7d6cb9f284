"""Keys and values of 4 bits keep the promises that bfloat16 keeps in other files: pieces, company, drafts, turns."""

from dataclasses import replace

import pytest

from strata.build import load_model
from strata.cli.synth import synth
from strata.models.base import LanguageModel
from strata.quant.cell_codes import CellCode
from strata.settings import EngineSettings
from tests.same_answer.served import Served, assert_whole, request, text
from tests.same_answer.test_turns import NEW, defined_turn


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LanguageModel:
    """Indexed attention and a draft layer."""
    folder = tmp_path_factory.mktemp("q4") / "qwen4_exp"
    synth("qwen4_exp", folder, fields=["vocab_size=8192"])
    settings = EngineSettings(threads=1, drafts=1, kv_kind="q4")
    loaded = load_model(folder, settings)
    plain = load_model(folder, replace(settings, kv_kind="f32"))
    assert loaded.slot_bytes < plain.slot_bytes
    return loaded.engine.model


def test_pieces_company_and_drafts_change_no_bit(model: LanguageModel) -> None:
    asked = [request(text(rows, rows), 8) for rows in (300, 70)]
    alone = [Served(model).ask(each).bits for each in asked]
    assert alone[0] == Served(model, chunk_rows=64).ask(asked[0]).bits == Served(model, drafts=2).ask(asked[0]).bits
    served = Served(model, 2, chunk_rows=64, max_gap_ms=1.0, drafts=1)
    for number, each in enumerate(asked):
        served.submit(number, each)
    served.finish()
    for number, bits in enumerate(alone):
        assert_whole(served.answers[number])
        assert served.answers[number].bits == bits


def test_a_kept_turn_has_the_bits_of_its_definition(model: LanguageModel) -> None:
    served, prompt = Served(model, 2, drafts=2), text(150, 1)
    reply = served.ask(request(prompt, 12)).token_ids
    turn = served.ask(request([*prompt, *reply, *NEW], 6))
    assert turn.cached == len(prompt) + len(reply) - 1
    assert turn.bits == defined_turn(model, prompt, reply[:-1], [reply[-1], *NEW], 6)


def test_the_draft_layer_keeps_its_cells_alike(model: LanguageModel) -> None:
    head = model.draft_head
    assert head is not None
    mixer = head.new_state().layer.mixer
    assert (mixer.keys.code, mixer.values.code) == (CellCode.CODE4, CellCode.CODE4)
