"""Which devices compute the stages: as named, or every card that will do; what is not there is told with what works."""

from typing import Any

import pytest

from strata.engine.stage_devices import asked_cuts, is_staged, stage_budgets, stage_devices
from strata.errors import SettingsError
from strata.hardware import GpuFacts, MemoryFacts
from strata.settings import EngineSettings

GIB = 1 << 30
BIG, SMALL = GpuFacts("big", 80 * GIB, 78 * GIB, (9, 0)), GpuFacts("small", 24 * GIB, 23 * GIB, (8, 6))
OLD = GpuFacts("old", 8 * GIB, 8 * GIB, (7, 5))
MEMORY = MemoryFacts(total=64 * GIB, available=40 * GIB)


def names(gpus: tuple[GpuFacts, ...], **values: Any) -> list[str]:
    return [each.name for each in stage_devices(EngineSettings(**values), gpus, None if gpus else "no driver")]


def test_devices_are_those_that_are_named_or_every_card_that_will_do() -> None:
    assert names((BIG, SMALL), devices="cuda:1,cuda:0") == ["cuda:1", "cuda:0"]
    assert names((BIG,), devices="cuda:0,cpu,cuda:0") == ["cuda:0", "cpu", "cuda:0"]
    assert names((), devices="cpu,cpu", layer_split="3") == ["cpu", "cpu"]
    assert names((BIG, OLD, SMALL), layer_split="auto") == ["cuda:0", "cuda:2"]
    assert names((BIG, SMALL, SMALL), layer_split="3") == ["cuda:0", "cuda:1"]
    assert not is_staged(EngineSettings()) and is_staged(EngineSettings(devices="cpu"))
    assert asked_cuts(EngineSettings(layer_split="3,9")) == (3, 9)
    assert asked_cuts(EngineSettings(layer_split="auto")) is None is asked_cuts(EngineSettings())


@pytest.mark.parametrize(
    ("gpus", "values", "told"),
    [
        ((BIG,), {"devices": "cuda:1"}, "cuda:1 is not there: this PC has cuda:0"),
        ((), {"devices": "cuda:0"}, "cuda:0 is not there: no driver; cpu works"),
        ((OLD,), {"devices": "cuda:0"}, r"cuda:0, old, has compute capability 7\.5 and the kernels need 8\.0"),
        ((BIG,), {"devices": "cuda"}, "'cuda' is no device; names with commas between"),
        ((BIG,), {"devices": "cuda:0,"}, "'' is no device"),
        ((BIG,), {"devices": "cuda:0", "device": "cuda"}, "does not work beside device cuda"),
        ((BIG,), {"devices": "cpu,cpu", "layer_split": "1,2"}, "1,2 makes 3 stages, more than the 2 devices"),
        ((BIG,), {"devices": "cpu,cpu", "layer_split": "auto", "dtype": "float64"}, "dtype: float64 does not work"),
        ((BIG,), {"devices": "cpu,cpu,cpu", "layer_split": "1"}, "1 makes 2 stages, fewer than the 3 devices"),
        ((BIG,), {"layer_split": "1"}, r"2 stages, and there is 1 card \(cuda:0\); devices cuda:0,cuda:0 puts all"),
        ((), {"layer_split": "auto"}, "no driver; with devices cpu,cpu both stages are on the processor"),
        ((OLD,), {"layer_split": "auto"}, "no card of this PC will do"),
        ((BIG,), {"layer_split": "1", "device": "cpu"}, "devices cpu,cpu in its place does"),
        ((BIG,), {"layer_split": "one"}, "'one' is not the first layer of every stage"),
    ],
)
def test_what_cannot_be_is_one_sentence(gpus: tuple[GpuFacts, ...], values: dict[str, str], told: str) -> None:
    with pytest.raises(SettingsError, match=told):
        names(gpus, **values)


def test_a_device_that_stands_twice_is_shared_out_and_main_memory_is_one() -> None:
    settings = EngineSettings(devices="cuda:0,cuda:1,cuda:0", vram_gib=20)
    found = stage_budgets(stage_devices(settings, (BIG, SMALL), None), MEMORY, settings)
    assert [each.card.usable for each in found] == [10 * GIB, 20 * GIB, 10 * GIB]
    assert [each.card.free for each in found] == [39 * GIB, 23 * GIB, 39 * GIB]
    assert {each.ram.usable for each in found} == {40 * GIB}
    assert found[1].card_name == "cuda:1 (small)" and found[0].reserve == found[1].reserve // 2
    settings = EngineSettings(devices="cpu,cuda:0,cpu", ram_gib=24)
    found = stage_budgets(stage_devices(settings, (BIG,), None), MEMORY, settings)
    assert [each.card.usable for each in found] == [6 * GIB, 78 * GIB, 6 * GIB]
    assert [each.reserve > 0 for each in found] == [False, True, False]
    assert {each.ram.usable for each in found} == {12 * GIB}  # the stages on the processor have the other half
    with pytest.raises(SettingsError, match=r"setting ram_gib: 65 does not work: .* 64\.0 GiB in all"):
        stage_budgets(found_devices(), MEMORY, EngineSettings(ram_gib=65))


def found_devices() -> Any:
    return stage_devices(EngineSettings(devices="cpu"), (), None)
