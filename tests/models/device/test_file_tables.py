"""Who asks for rows of tables in files: every n-gram layer in a mailbox of its own. What comes of it: tests/engine."""

import pytest
import torch

from strata.models.device.file_tables import file_tables_of
from strata.models.device.held import FileTable
from strata.models.device.reading.rows import NGRAM_ROWS
from strata.models.device.weights import DeviceWeights
from strata.native import library
from tests.gpu.tiny_models import tiny_model

CPU = torch.device("cpu")


@pytest.mark.skipif(not library.is_available(), reason="the native library was not built")
def test_every_layer_has_a_mailbox_of_its_table() -> None:
    tiny = tiny_model("qwen4_exp", "code8")
    built = tiny.family.build(tiny.config, DeviceWeights(tiny.source, tiny.names, CPU, reads_tables=True))
    tables = file_tables_of(built, CPU, waits_in_stream=True, groups=2)
    assert tables is not None
    parts = [layer.ngram for layer in built.layers if layer.ngram is not None]
    assert len(parts) == 2
    for index, part in enumerate(parts):
        assert isinstance(part.table, FileTable)
        asked, beside = (tables.table(index, group) for group in range(2))
        assert beside.index == index and beside.mailbox.door.data_ptr() != asked.mailbox.door.data_ptr()
        assert asked.index == index and asked.mailbox.gate is not None and asked.mailbox.x is None
        assert asked.mailbox.out.shape == (NGRAM_ROWS, part.shape.heads, part.table.stored.layout.columns)
        ids = torch.tensor([0, part.table.stored.rows - 1])
        assert torch.equal(part.table(ids), tiny.source.rows(part.table.stored.name, ids, torch.float32))
    assert tables.counts().requests == 0
    tables.close()


def test_a_model_with_all_tables_in_memory_asks_nobody() -> None:
    tiny = tiny_model("llama", "code4")
    built, description = tiny.build(CPU)
    assert file_tables_of(built, CPU) is None
    assert description.asked == ()
