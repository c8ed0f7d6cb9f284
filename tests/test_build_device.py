"""Which device a model is loaded onto, and a whole engine on a card: here its tensors lie in main memory."""

import gc
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from strata import build
from strata.api import Engine
from strata.build import choose_device, load_model
from strata.cli.app import run
from strata.cli.synth import synth
from strata.engine.compile_share import CompileRequest
from strata.engine.control import RunControl
from strata.engine.device_needs import plan_for
from strata.engine.memory_plan import Place, budgets_of
from strata.engine.request import TokenRequest
from strata.engine.stage_loading import Card
from strata.engine.stage_model import StageModel
from strata.errors import ModelError, SettingsError
from strata.hardware import GpuFacts, read_memory
from strata.kernels import roads
from strata.models.row_model import RowModel
from strata.native import library
from strata.sampling.options import SamplingOptions
from strata.scheduler.due import Limits
from strata.scheduler.runner import RequestRunner
from strata.scheduler.scheduler import Scheduler
from strata.settings import EngineSettings
from strata.weights.opening import open_model

pytestmark = pytest.mark.usefixtures("library_products")
GIB = 1 << 30
needs_library = pytest.mark.skipif(not library.is_available(), reason="the native library was not built")
GOOD = GpuFacts("a made-up card", 80 * GIB, 79 * GIB, (9, 0))
OLD = GpuFacts("an old card", 8 * GIB, 8 * GIB, (7, 5))
SMALL = GpuFacts("a small card", 2 * GIB, 1 * GIB, (8, 6))


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("device") / "llama"
    synth("llama", directory, fields=["vocab_size=8192"])
    return directory


@pytest.fixture
def pc(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Any]:
    """Gives this PC cards: the first is emulated by main memory, whose torch road is then the card's."""
    monkeypatch.setattr(Card, "cuda", lambda _: Card(torch.device("cpu"), lambda: 79 * GIB, lambda: None))
    monkeypatch.setattr(build, "use_cache", lambda _: None)
    monkeypatch.setattr(build, "compile_ahead", lambda *_: None)
    monkeypatch.setattr(build, "kernel_cache_folder", lambda _: tmp_path / "kernels")
    monkeypatch.setattr(build, "profiles_folder", lambda: tmp_path / "profiles")
    monkeypatch.setattr(build, "why_no_gpu", lambda: "torch says: the driver is too old")

    def with_cards(*cards: GpuFacts, driver: str | None = None) -> None:
        monkeypatch.setattr(build, "read_gpus", lambda: cards)
        monkeypatch.setattr(build, "read_gpu_driver", lambda: driver)

    yield with_cards
    roads.force_reference(False)
    roads.use_dependent_launches(True)


def test_a_card_is_taken_if_there_is_one_that_will_do(llama: Path, pc: Any) -> None:
    source = open_model(llama, "none")
    for cards, asked, index in (((GOOD,), "auto", 0), ((OLD, GOOD), "auto", 1), ((GOOD,), "cuda", 0)):
        pc(*cards)
        chosen = choose_device(source, EngineSettings(device=asked))
        assert chosen.card is not None
        assert (chosen.card.index, chosen.card.facts, chosen.notices) == (index, cards[index], ())
    assert choose_device(source, EngineSettings(device="cpu")).card is None


@pytest.mark.parametrize(
    ("cards", "driver", "told"),
    [
        ((), None, None),
        ((), "550.1", "torch says: the driver is too old"),
        ((OLD,), "550.1", "an old card has compute capability 7.5 and the kernels need 8.0"),
        ((SMALL,), "550.1", "this model does not fit on a small card"),
    ],
)
def test_unasked_the_cpu_computes_where_no_card_will_do_and_it_is_said(
    llama: Path, pc: Any, cards: tuple[GpuFacts, ...], driver: str | None, told: str | None
) -> None:
    pc(*cards, driver=driver)
    chosen = choose_device(open_model(llama, "none"), EngineSettings())
    assert chosen.card is None
    assert len(chosen.notices) == (told is not None)
    assert told is None or chosen.notices[0].startswith(f"the model runs on the CPU and not on a card: {told}")


def test_a_card_that_was_asked_for_and_will_not_do_is_refused_in_one_sentence(llama: Path, pc: Any) -> None:
    source = open_model(llama, "none")
    cases: tuple[tuple[tuple[GpuFacts, ...], dict[str, Any], type[Exception], str], ...] = (
        ((), {}, SettingsError, "setting device: cuda does not work: torch says: the driver is too old; cpu works"),
        ((OLD,), {}, SettingsError, "setting device: cuda does not work: an old card has compute capability 7.5"),
        ((GOOD,), {"dtype": "float64"}, SettingsError, "dtype is float64, which only the CPU computes"),
        ((SMALL,), {}, ModelError, r"does not fit on a small card.* a card with [0-9.]+ GiB free"),
        ((GOOD,), {"vram_gib": 100}, SettingsError, "vram_gib: 100 does not work"),
    )
    for cards, values, kind, sentence in cases:
        pc(*cards)
        with pytest.raises(kind, match=sentence):
            choose_device(source, EngineSettings(device="cuda", **values))


@pytest.mark.parametrize(
    ("device", "cards", "words"),
    [
        ("cpu", (GOOD,), "4,096 does not work: on the CPU all keys and values lie in main memory; 0 does"),
        ("auto", (OLD,), "it is for a card, and the model runs on none: an old card has compute capability 7.5"),
        ("auto", (GOOD,), "every row of this model reads all its keys and values"),
    ],
)
def test_a_pool_of_keys_and_values_needs_a_card_and_an_indexer(
    llama: Path, pc: Any, device: str, cards: tuple[GpuFacts, ...], words: str
) -> None:
    pc(*cards)
    with pytest.raises(SettingsError, match=words):
        choose_device(open_model(llama, "none"), EngineSettings(device=device, kv_resident=4096))


def test_the_command_line_says_so_and_fails(llama: Path, pc: Any, capsys: pytest.CaptureFixture[str]) -> None:
    pc()
    assert run(["generate", "hi", "--model", str(llama), "--device", "cuda"]) == 2
    assert capsys.readouterr().err == (
        "error: setting device: cuda does not work: torch says: the driver is too old; cpu works\n"
    )


def test_an_engine_on_a_card_answers_as_one_on_the_cpu(llama: Path, pc: Any) -> None:
    pc(GOOD)
    texts = {}
    for device in ("cpu", "cuda"):
        with Engine(llama, device=device, slots=2, context=512) as engine:
            reply = engine.generate([5] * 40, SamplingOptions(max_tokens=6, ignore_eos=True))
            texts[device] = reply.text()
            assert engine.context == 512
    assert texts["cuda"] == texts["cpu"]


def test_keys_and_values_in_main_memory_change_no_answer(tmp_path: Path, pc: Any) -> None:
    """Of a tiny model that chooses 2 blocks of 4 cells; a pool as long as the context is told to be of no use."""
    synth("qwen4_exp", tmp_path / "model", fields=["vocab_size=8192", "indexer_budget=8", "num_hidden_layers=4"])
    pc(GOOD)
    texts = {}
    for resident in (0, 16, 512):
        with Engine(tmp_path / "model", device="cuda", slots=1, context=512, kv_resident=resident) as engine:
            texts[resident] = engine.generate([5] * 30, SamplingOptions(max_tokens=4, ignore_eos=True)).text()
            told = [notice for notice in engine.notices if notice.startswith("kv_resident")]
            assert len(told) == (resident == 512)
    assert texts[0] == texts[16] == texts[512]


@pytest.fixture(scope="module")
def sparse(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("device") / "sparse"
    synth("qwen3_moe", directory, fields=["vocab_size=8192"])
    return directory


@pytest.fixture(scope="module")
def card_for_half(sparse: Path) -> GpuFacts:
    """A card with room for half of the sparse model's experts beside one short conversation."""
    budgets = budgets_of(GOOD, read_memory(), None, None)
    settings = EngineSettings(slots=1, context=512, gpu_reads="windows")
    plan = plan_for(open_model(sparse, "none"), settings, budgets)
    assert plan.refusal is None and plan.seats is None
    room = plan.used(Place.CARD) + plan.request.reserve - plan.request.routed_bytes // 2
    return GpuFacts("a card for half", 8 * GIB, room, (9, 0))


@needs_library
def test_a_card_is_taken_that_holds_a_part_of_the_experts(
    sparse: Path, card_for_half: GpuFacts, pc: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = open_model(sparse, "none")
    pc(card_for_half)
    for values, share in (({}, 0.5), ({"resident": True}, 0.5), ({"cache_gib": 0.0}, 0.0)):
        chosen = choose_device(source, EngineSettings(slots=1, context=512, gpu_reads="windows", **values))
        assert chosen.card is not None
        assert chosen.card.plan.seat_share == pytest.approx(share, abs=0.05)
    with pytest.raises(ModelError, match=r"setting cache_gib: 4 does not work.* GiB of a card for half are left"):
        choose_device(source, EngineSettings(device="cuda", slots=1, context=512, cache_gib=4, gpu_reads="windows"))
    pc(card_for_half, driver="550.1")
    chosen = choose_device(source, EngineSettings(slots=1, context=512, ram_gib=0.4, gpu_reads="windows"))
    assert chosen.card is None
    assert "a card for half with main memory beside it" in chosen.notices[0]
    monkeypatch.setattr(library, "is_available", lambda: False)
    with pytest.raises(ModelError, match="computed by the C\\+\\+ library, which was not built"):
        choose_device(source, EngineSettings(device="cuda", slots=1, context=512, gpu_reads="windows"))


TIERED: tuple[dict[str, Any], ...] = (
    {"cache_gib": 0.0},
    {"cache_gib": 1e-4},
    {"cache_gib": 1e-4, "resident": True},
    {"cache_gib": 1e-4, "expert_swaps": False, "pcie_share": 0.5},
    {"cache_gib": 1e-4, "expert_wait": "stream"},
)


@needs_library
def test_an_engine_with_experts_in_tiers_answers_as_one_with_all_on_the_card(sparse: Path, pc: Any) -> None:
    pc(GOOD)
    whole, *texts = (text_of(sparse, values) for values in ({}, *TIERED))
    assert texts == [whole] * len(TIERED)


def text_of(model: Path, values: dict[str, Any]) -> str:
    with Engine(model, device="cuda", slots=2, context=512, threads=1, **values) as engine:
        return engine.generate([5] * 40, SamplingOptions(max_tokens=12, ignore_eos=True)).text()


@needs_library
@pytest.mark.parametrize(("wait", "has_gate"), [("spin", False), ("stream", True)])
def test_what_waits_for_the_cpu_is_as_the_setting_says(wait: str, has_gate: bool, sparse: Path, pc: Any) -> None:
    pc(GOOD)
    values: dict[str, Any] = {"device": "cuda", "slots": 1, "context": 512, "cache_gib": 0.0, "expert_wait": wait}
    settings = EngineSettings(**values)
    loaded = load_model(sparse, settings)
    assert isinstance(loaded.engine.model, StageModel) and loaded.notices == ()
    tiers = loaded.engine.model.stage.model.tiers
    assert tiers is not None and (tiers.mailboxes[0].gate is not None) == has_gate
    chosen = choose_device(open_model(sparse, "none"), settings)
    assert chosen.card is not None
    assert build.compile_request(sparse, settings, chosen.card).waits_in_stream == has_gate


@needs_library
def test_memory_of_experts_in_tiers_is_free_when_an_engine_is_closed(sparse: Path, pc: Any, tmp_path: Path) -> None:
    pc(GOOD)
    file = tmp_path / "named"
    values: dict[str, Any] = {"device": "cuda", "slots": 1, "context": 512, "cache_gib": 1e-4}
    engine = Engine(sparse, expert_profile=str(file), **values)
    reply = engine.generate([5] * 40, SamplingOptions(max_tokens=12, ignore_eos=True))
    reply.text()
    assert engine._loaded is not None and isinstance(engine._loaded.engine.model, StageModel)
    tiers = engine._loaded.engine.model.stage.model.tiers
    assert tiers is not None
    memory, alive = weakref.ref(tiers._places), weakref.ref(tiers)
    gc.collect()
    gc.disable()
    try:
        del tiers
        engine.close()
        assert (memory(), alive()) == (None, None)
    finally:
        gc.enable()
    assert file.is_file()


@needs_library
def test_what_a_run_asked_for_decides_who_has_a_seat_in_the_next(
    sparse: Path, pc: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pc(GOOD)
    wishes: list[Any] = []
    load = build.load_stages

    def noting(*parts: Any, **named: Any) -> Any:
        wishes.append(named["wishes"])
        return load(*parts, **named)

    monkeypatch.setattr(build, "load_stages", noting)
    values: dict[str, Any] = {"device": "cuda", "slots": 1, "context": 512, "cache_gib": 1e-4}
    for file in (None, None, str(tmp_path / "named")):
        values["expert_profile"] = file
        with Engine(sparse, **values) as engine:
            engine.generate([5] * 40, SamplingOptions(max_tokens=12, ignore_eos=True)).text()
            assert engine.notices == ()
    assert [each.heat is None for each in wishes] == [True, False, True]
    assert wishes[1].heat.sum() > 0
    assert (tmp_path / "named").is_file()
    assert len(list((tmp_path / "profiles").glob("*.profile"))) == 1
    (tmp_path / "named").write_text("something else")
    (notice,) = load_model(sparse, EngineSettings(**values)).notices
    assert "is no profile of experts; the profile is not used" in notice


def test_settings_of_tiers_change_nothing_where_all_experts_lie_on_the_card(sparse: Path, pc: Any) -> None:
    pc(GOOD)
    settings = EngineSettings(device="cuda", slots=1, context=512, resident=True, expert_swaps=False)
    assert load_model(sparse, settings).notices == (
        "resident changes nothing: all experts lie on the card",
        "expert_swaps changes nothing: all experts lie on the card",
    )


@pytest.mark.parametrize(
    ("sampling", "variants"), [("auto", {"forward", "commit", "window"}), ("host", {"forward", "commit"})]
)
def test_what_is_asked_for_is_what_runs(llama: Path, pc: Any, sampling: str, variants: set[str]) -> None:
    pc(GOOD)
    settings = EngineSettings(
        device="cuda", slots=1, context=512, window_sampling=sampling, drafts=2, gpu_reads="windows"
    )
    loaded = load_model(llama, settings)
    assert "drafts = 2 changes nothing: draft layers do not run on a GPU yet" in loaded.notices
    model = loaded.engine.model
    assert isinstance(model, StageModel)
    assert (loaded.slots, loaded.slot_bytes) == (1, model.slots.slot_bytes)
    ran: set[str] = set()
    run_stage = model.run

    def noting(variant: Any, bucket: int) -> None:
        ran.add(variant.value.removeprefix("unfiltered "))
        run_stage(variant, bucket)

    model.run = noting
    runner = RequestRunner(
        lambda: Scheduler(loaded.engine, Limits.of(settings, loaded.slots, loaded.engine.chunk_rows))
    )
    list(runner.run(TokenRequest((5, 6, 7), SamplingOptions(max_tokens=4)), RunControl()))
    assert ran == variants


def test_the_twins_are_forced_for_a_card_and_left_alone_for_the_cpu(llama: Path, pc: Any) -> None:
    pc(GOOD)
    assert isinstance(load_model(llama, EngineSettings(device="cpu", gpu_path="torch")).engine.model, RowModel)
    assert not roads.is_reference_on("cuda")
    load_model(llama, EngineSettings(device="cuda", gpu_path="torch", slots=1, context=512))
    assert roads.is_reference_on("cuda")


def test_kernels_are_compiled_before_a_stage_and_marked_behind_it(
    llama: Path, pc: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pc(GOOD)
    (tmp_path / "kernels").mkdir()
    asked: list[tuple[CompileRequest, bool]] = []
    monkeypatch.setattr(build, "compile_ahead", lambda request, marker, *_: asked.append((request, marker.exists())))
    for values in ({}, {}, {"dependent_launches": False}, {"gpu_path": "torch"}, {"verify_profile": True}):
        load_model(llama, EngineSettings(device="cuda", slots=2, context=512, **values))
    assert [marked for _, marked in asked] == [False, True, False, True]
    assert asked[0][0] == CompileRequest(llama, "none", 2, 0, 0, tmp_path / "kernels", reads_chunks=True)
    assert len(list((tmp_path / "kernels").glob("complete-*"))) == 2


def test_the_setting_of_dependent_launches_is_the_kernels(llama: Path, pc: Any) -> None:
    pc(GOOD)
    for are_used in (False, True):
        load_model(llama, EngineSettings(device="cuda", slots=1, context=512, dependent_launches=are_used))
        assert roads.uses_dependent_launches() is are_used
