"""gpu_path = torch: the twins over tensors of a device. Without a GPU the device is pretended: what mixes places fails.

That real tensors of a GPU take the same road is seen only on one: `strata bench kernels --gpu` runs the twins there.
"""

from collections.abc import Iterator

import pytest
import torch

from strata.engine.stage import RowsPart, Stage, StageSizes
from strata.kernels.embed_rows import embed_rows
from strata.kernels.roads import force_reference
from strata.kernels.sampler.plan import PlannedPart
from strata.kernels.sampler.results import PartResult, read_results
from strata.kernels.sampler.slots import ChoiceOptions, ReplyStart
from tests.engine.stages import CPU, EVERY_STATE, described
from tests.kernels.pretended_device import DeviceTensor, pretended_device
from tests.kernels.random_matrices import KINDS, Kind, on_device, random_matrix

CHOICES = (ChoiceOptions(), ChoiceOptions(inverse_temperature=1.0, top_k=20, seed=3))


class DoneEvent:
    """What was launched on a pretended device has been done at once."""

    def record(self, stream: object) -> None:
        """Nothing is under way."""

    def synchronize(self) -> None:
        """Nothing is waited for."""


@pytest.fixture
def library_products() -> None:
    """None here: the twins as they are."""


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[torch.device]:
    monkeypatch.setattr(torch.cuda, "synchronize", lambda *_: None)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda *_: None)
    monkeypatch.setattr(torch.cuda, "Event", DoneEvent)
    force_reference(True)
    with pretended_device() as pretended:
        yield pretended
    force_reference(False)


def test_a_pretended_device_refuses_what_a_gpu_refuses(device: torch.device) -> None:
    there, here = torch.ones(2, device=device), torch.ones(2)
    assert (there.device, here.device) == (device, CPU)
    with pytest.raises(TypeError, match="to numpy"):
        there.numpy()
    with pytest.raises(RuntimeError, match="same device"):
        there + here
    with pytest.raises(RuntimeError, match="same device"):
        here[there.long()]
    with pytest.raises(RuntimeError, match="same device"):
        there[there.long()] = here
    assert (there + here.to(device)).sum() == (there.cpu() + here).sum() == 4


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_a_matrix_on_a_device_is_decoded_there(kind: Kind, device: torch.device) -> None:
    matrix = random_matrix(1, kind.layout(20, 256))
    moved = on_device(matrix, device)
    decoded = moved.decode()
    assert isinstance(decoded, DeviceTensor)
    assert torch.equal(decoded.cpu(), matrix.decode())


def test_a_table_in_main_memory_serves_tokens_of_a_device(device: torch.device) -> None:
    table = random_matrix(2, KINDS[0].layout(20, 256))
    tokens = torch.tensor([3, 19, 0], dtype=torch.int32)
    wanted, found = torch.empty(3, 256), torch.empty(3, 256, device=device)
    embed_rows((table,), tokens, wanted, 1)
    embed_rows((table,), tokens.to(device), found, 1)
    assert torch.equal(found.cpu(), wanted)


@pytest.mark.parametrize("name", EVERY_STATE)
def test_windows_and_reads_on_a_device_give_the_tokens_of_main_memory(name: str, device: torch.device) -> None:
    assert windows(name, device) == windows(name, CPU)


def windows(name: str, device: torch.device) -> list[tuple[int, list[PartResult]]]:
    """Results of some windows of two slots, one behind rows that were read."""
    stage = Stage(described(name, device)[1], StageSizes(2, 512), (2,))
    assert isinstance(stage.state.keys.codes, DeviceTensor) is (device.type == "cuda")
    stage.set_rows(2, [RowsPart(0, 30, (3, 4))])  # behind cells of zeros, beyond the indexer's budget
    stage.read(2)
    for slot, start in enumerate((32, 0)):
        stage.set_reply(slot, ReplyStart(start, 5, 99, (), CHOICES[slot]))
    stage.set_plan(1, [PlannedPart(0), PlannedPart(1)])
    found = []
    for _ in range(2):
        stage.window(2)
        words = stage.to_host(stage.results.words).tolist()
        serial, parts = read_results(words, stage.results.segments, stage.results.most_drafts)
        found.append((serial, list(parts)))
    return found
