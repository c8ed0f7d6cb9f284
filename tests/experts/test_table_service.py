"""Rows of tables in files have the bits of the table in memory; files that fail are told, and nobody waits for ever."""

import os
import shutil
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from strata.errors import EngineError, WeightFileError
from strata.experts.table_service import TableService
from strata.kernels.expert_plan.tables import RAISED
from strata.native import library
from strata.native.packing import packs
from strata.native.pool import Pool
from strata.quant.formats import ALL, by_name
from strata.quant.formats.base import Format
from strata.quant.formats.fp8_block import fp8_layout, pack_fp8_blocks
from strata.quant.layout import TILE_ROWS
from strata.weights.header import StoredTensor
from strata.weights.opening import open_model
from strata.weights.table_files import StoredTable, TablePiece, stored_table
from tests.experts.busy_pool import stick
from tests.experts.tables import HEADER_BYTES, Asker, in_memory, mailbox_for, stored_in
from tests.weights.gguf_models import gguf
from tests.weights.model_files import write_model

pytestmark = pytest.mark.skipif(not library.is_available(), reason="the native library was not built")

IQ4_NL = by_name("IQ4_NL")
READ = [each for each in ALL if library.is_available() and packs(each.gguf_type)]
COLUMNS = 512
TABLE = "model.layers.1.ple.ple_embedding.ngram_embedding.weight"


@pytest.fixture(scope="module")
def readers() -> Iterator[Pool]:
    with Pool(2, keeps_cores=False, spin_us=0) as made:
        yield made


def some_ids(rows: int, heads: int, table_rows: int, seed: int = 0) -> torch.Tensor:
    ids = torch.randint(table_rows, (rows, heads), generator=torch.Generator().manual_seed(seed))
    ids[0, 0], ids[-1, -1] = 0, table_rows - 1
    return ids


def same_bits(found: torch.Tensor, wanted: torch.Tensor) -> bool:
    return torch.equal(found.contiguous().view(torch.int32), wanted.contiguous().view(torch.int32))


@pytest.mark.parametrize("kind", READ, ids=lambda kind: kind.name)
def test_rows_have_the_bits_of_the_table_in_memory(kind: Format, readers: Pool, tmp_path: Path) -> None:
    table = stored_in(tmp_path, kind, COLUMNS, (37, 5, 40))
    mailbox, ids = mailbox_for(table, 20, 4), some_ids(20, 4, 82)
    asker, wanted = Asker(mailbox), in_memory(kind, table)
    with TableService(readers, [table], [mailbox]) as service:
        service.begin(0)
        for rows in (1, 20):
            asker.ask(ids[:rows])
            assert same_bits(asker.wait()[:rows], wanted[ids[:rows]])
        service.end(0)
        assert mailbox.status.item() == 0
        found = service.counters()
        assert (found.requests, found.rows) == (2, 84)


def test_fp8_rows_are_scaled_as_in_memory(readers: Pool, tmp_path: Path) -> None:
    rows, columns, block = 70, 160, (32, 64)
    weight = (torch.randn(rows, columns) * 20).to(torch.float8_e4m3fn)
    scale = torch.rand(3, 3) + 0.5
    file = tmp_path / "fp8.bin"
    data = weight.view(torch.uint8).numpy().tobytes()
    file.write_bytes(data + scale.numpy().tobytes())
    scales = StoredTensor("scales", file, "F32", (3, 3), len(data), len(data) + 36)
    table = StoredTable("fp8", fp8_layout(TILE_ROWS, columns, block[1]), 1.0, None, block[0], (
        TablePiece(file, file.stat(), 0, rows, scales),
    ))  # fmt: skip
    mailbox, ids = mailbox_for(table, 9, 2), some_ids(9, 2, rows)
    with TableService(readers, [table], [mailbox]) as service:
        service.begin(0)
        asker = Asker(mailbox)
        asker.ask(ids)
        assert same_bits(asker.wait(), pack_fp8_blocks(weight, scale, block).decode()[ids])
        service.end(0)


def test_each_table_has_a_mailbox_and_rows_that_nobody_wants_are_left_alone(readers: Pool, tmp_path: Path) -> None:
    kinds = IQ4_NL, by_name("Q8_0")
    tables = [stored_in(tmp_path, kind, columns, (50,)) for kind, columns in zip(kinds, (64, 160), strict=True)]
    boxes = [mailbox_for(table, 8, 3, has_gate=True) for table in tables]
    with TableService(readers, tables, boxes) as service:
        for index in range(2):
            service.begin(index)
        askers = [Asker(box) for box in boxes]
        ids = some_ids(8, 3, 50)
        ids[2] = -1
        for box, asker, index in zip(boxes, askers, range(2), strict=True):
            box.out.fill_(7.0)
            asker.ask(ids, table=index)
        for asker, kind, table in zip(askers, kinds, tables, strict=True):
            wanted = in_memory(kind, table)[ids]
            wanted[2] = 7.0
            assert same_bits(asker.wait(), wanted)
        for index in range(2):
            service.end(index)


def told(service: TableService, asker: Asker, ids: torch.Tensor) -> str:
    """What the service says of a request that fails; it answers the next one."""
    before = service.state(0).failures
    asker.ask(ids)
    asker.wait()
    state = service.state(0)
    assert state.failures == before + 1 and not state.is_late
    return state.failure


def test_a_file_that_changes_or_is_cut_is_told_and_the_next_request_is_answered(readers: Pool, tmp_path: Path) -> None:
    table = stored_in(tmp_path, IQ4_NL, 64, (40, 40))
    mailbox, wanted = mailbox_for(table, 4, 2), in_memory(IQ4_NL, table)
    first, second = (piece.file for piece in table.pieces)
    good, both = torch.tensor([[3, 39], [0, 1]]), torch.tensor([[3, 41], [0, 1]])
    with TableService(readers, [table], [mailbox]) as service:
        service.begin(0)
        asker = Asker(mailbox)
        asker.ask(both)
        assert same_bits(asker.wait()[:2], wanted[both])
        times, data = second.stat(), second.read_bytes()
        os.utime(second, ns=(times.st_atime_ns, times.st_mtime_ns + 1_000_000))
        assert told(service, asker, both) == "IQ4_NL-1.bin has changed since the model was opened: start again"
        asker.ask(good)
        assert same_bits(asker.wait()[:2], wanted[good]), "the other file is as it was"
        os.truncate(second, HEADER_BYTES + 36)
        assert told(service, asker, both) == "IQ4_NL-1.bin ends before row 41: it was shortened"
        second.write_bytes(data)
        os.utime(second, ns=(times.st_atime_ns, times.st_mtime_ns))
        asker.ask(both)
        assert same_bits(asker.wait()[:2], wanted[both]), "as it was again"
        assert mailbox.status.item() == 0
        os.utime(first)
        first.unlink()
        first.write_bytes(b"another model")
        assert "IQ4_NL-0.bin has changed" in told(service, asker, good), "its times, not the name"
        service.end(0)


@pytest.mark.parametrize("kind", ["gguf", "safetensors"])
def test_a_file_that_changed_before_anyone_reads_is_refused(readers: Pool, tmp_path: Path, kind: str) -> None:
    if kind == "gguf":
        file = path = Path(shutil.copy(gguf("qwen4_exp", "Q8_0"), tmp_path / "model.gguf"))
    else:
        path = write_model(
            tmp_path / "model",
            {"a.safetensors": {TABLE.replace("weight", "shard_0.weight"): torch.randn(40, 16).bfloat16()}},
        )
        (file,) = path.glob("*.safetensors")
    source = open_model(path, "none")
    table = stored_table(source, TABLE)
    mailbox, times = mailbox_for(table, 4, 2), file.stat()
    TableService(readers, [table], [mailbox]).close()
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns + 1_000_000))
    with pytest.raises(EngineError, match=rf"^{file.name} has changed since the model was opened: start again$"):
        TableService(readers, [table], [mailbox])


def test_a_disk_that_fails_is_told_with_the_systems_words(readers: Pool, tmp_path: Path) -> None:
    table = stored_in(tmp_path, IQ4_NL, 64, (40,))
    mailbox = mailbox_for(table, 4, 2)
    with TableService(readers, [table], [mailbox]) as service, open("/proc/self/mem", "rb") as unreadable:
        (opened,) = service._kept[2]  # type: ignore[index]
        os.dup2(unreadable.fileno(), next(iter(opened.descriptors.values())))  # the page at address 100 is nobody's
        service.begin(0)
        found = told(service, Asker(mailbox), torch.tensor([[5, 6]]))
        assert found == "row 5 cannot be read from IQ4_NL-0.bin: Input/output error"
        service.end(0)


def test_values_that_are_no_numbers_are_told_with_their_row(readers: Pool, tmp_path: Path) -> None:
    table = stored_in(tmp_path, by_name("BF16"), 8, (60,))
    (piece,) = table.pieces
    times = piece.file.stat()
    data = bytearray(piece.file.read_bytes())
    data[HEADER_BYTES + 31 * 16 + 4 : HEADER_BYTES + 31 * 16 + 6] = b"\x80\x7f"
    piece.file.write_bytes(data)
    os.utime(piece.file, ns=(times.st_atime_ns, times.st_mtime_ns))
    mailbox = mailbox_for(table, 10, 4)
    with TableService(readers, [table], [mailbox]) as service:
        service.begin(0)
        ids = torch.arange(40).view(10, 4)
        assert "row 31 of the table in BF16-0.bin holds a value" in told(service, Asker(mailbox), ids)
        assert "row 60 of the table for place" in told(service, Asker(mailbox), torch.tensor([[60, 0]]))
        assert "a request for table 3" in told_of_table(service, mailbox_asker=Asker(mailbox))
        service.end(0)


def told_of_table(service: TableService, mailbox_asker: Asker) -> str:
    mailbox_asker.ask(torch.tensor([[0, 0]]), table=3)
    mailbox_asker.wait()
    return service.state(0).failure


@pytest.mark.parametrize("has_gate", [False, True])
def test_a_stop_at_any_moment_raises_every_flag(has_gate: bool, readers: Pool, tmp_path: Path) -> None:
    table = stored_in(tmp_path, IQ4_NL, 64, (400,))
    for delay in (0.0, 0.001, 0.005):
        mailbox = mailbox_for(table, 32, 16, has_gate=has_gate)
        service, asker = TableService(readers, [table], [mailbox]), Asker(mailbox)
        service.begin(0)

        def play(asker: Asker = asker) -> None:
            while asker.done.value != RAISED:
                asker.ask(some_ids(32, 16, 400))
                asker.wait()

        playing = threading.Thread(target=play)
        playing.start()
        time.sleep(delay)
        service.stop()
        playing.join(20)
        assert not playing.is_alive()
        service.close()


def test_readers_that_are_stuck_end_the_wait_in_time(tmp_path: Path) -> None:
    table = stored_in(tmp_path, IQ4_NL, 64, (400,))
    mailbox = mailbox_for(table, 32, 16)
    with Pool(2) as busy, TableService(busy, [table], [mailbox], limit_s=0.2) as service:
        service.begin(0)
        stuck, asker = stick(busy, 1.0), Asker(mailbox)
        asker.ask(some_ids(32, 16, 400))
        asker.wait()
        state = service.state(0)
        assert asker.done.value == RAISED and state.is_late
        assert "request 1 (32 rows, 512 places of table rows) has had no answer for 0.2 s" in state.failure
        stuck.join()


def test_files_that_are_not_there_or_too_short_are_refused_before_any_window(readers: Pool, tmp_path: Path) -> None:
    table = stored_in(tmp_path, IQ4_NL, 64, (40,))
    (piece,) = table.pieces
    mailbox = mailbox_for(table, 1, 1)
    os.truncate(piece.file, 200)
    with pytest.raises(EngineError, match=r"IQ4_NL-0\.bin has changed since"):
        TableService(readers, [table], [mailbox])
    shorter = replace(table, pieces=(replace(piece, opened=piece.file.stat()),))
    with pytest.raises(EngineError, match=r"IQ4_NL-0\.bin ends inside the table"):
        TableService(readers, [shorter], [mailbox])
    piece.file.unlink()
    with pytest.raises(WeightFileError, match=r"IQ4_NL-0\.bin cannot be read: no such file"):
        TableService(readers, [table], [mailbox])


def test_rows_that_the_system_has_dropped_are_asked_for_together(readers: Pool, tmp_path: Path) -> None:
    table = stored_in(tmp_path, IQ4_NL, 64, (20_000,))
    mailbox, ids = mailbox_for(table, 8, 16), some_ids(8, 16, 20_000)
    (piece,) = table.pieces
    with TableService(readers, [table], [mailbox]) as service:
        asker = Asker(mailbox)
        service.begin(0)
        asker.ask(ids)
        asker.wait()
        descriptor = os.open(piece.file, os.O_RDONLY)
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)
        asker.ask(ids)
        assert same_bits(asker.wait(), in_memory(IQ4_NL, table)[ids])
        assert service.counters().waited > 0, "the test's folder lies in memory"
        service.end(0)
