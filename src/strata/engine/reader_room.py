"""What chunks of a prompt take on a card beside weights, state and windows, from config alone; and how long they are.

Pure arithmetic, a little above what is taken (a test holds it against real stages): the plan asks before anything is
made. Knows which pieces a chunk has and which of them are one after another; knows no launch.
"""

from collections.abc import Mapping
from typing import Any

from strata.engine.memory_plan import CHUNKS, Growth, Place
from strata.engine.window_room import attention_width, delta_values, delta_width, head_dim_of
from strata.experts.streaming import ring_bytes
from strata.kernels.attention_read import AttentionReadWork
from strata.kernels.attention_rows import AttentionRowsShape, IndexerRowsShape
from strata.kernels.delta_read import CHUNK, DeltaReadWork
from strata.kernels.delta_rows import DeltaRowsShape
from strata.models.device.reading.layers import HEAD_ROWS
from strata.models.device.reading.mixers import DELTA_ROWS
from strata.models.device.reading.mlps import DENSE_ROWS
from strata.models.device.reading.rows import FIELDS, NGRAM_ROWS
from strata.models.device.reading.walk import GATE_ROWS
from strata.quant.cell_codes import CellKind

FLOAT_BYTES, ROUNDED_BYTES = 4, 2
MOST_CHUNK_ROWS = 8192
LEAST_CHUNK_ROWS = 64
CARD_PART = 8  # what chunks take is at most one part in eight of what a plan may fill
USUAL_CELLS = 32_768
PIECE_BYTES = 256  # what a piece is rounded up by
CHUNKS_ASIDE = "chunks set aside"  # while another prompt is read
HISTORY_BYTES = 16 << 10  # of n-grams, of all slots, at most


def fitting_chunk(
    values: Mapping[str, Any],
    usable: int,
    asked: int | None,
    cells: int,
    kind: CellKind,
    ring: int,
    *,
    is_paged: bool = False,
) -> int:
    """Rows of the largest chunk that takes a modest part of `usable` bytes, beside a usual context; or as asked.

    values: config.json of a family that runs on a device; cells: the most that a slot may have; ring: bytes that
    experts on their way take beside it; is_paged: keys and values lie in main memory.
    """
    cells = min(cells, USUAL_CELLS)
    if asked is not None:
        return asked
    rows = MOST_CHUNK_ROWS
    while (
        rows > LEAST_CHUNK_ROWS
        and CARD_PART * (reader_bytes(values, rows, cells, kind, is_paged=is_paged) + ring) > usable
    ):
        rows //= 2
    return rows


def reader_room(values: Mapping[str, Any], rows: int, cells: int, kind: CellKind, *, is_paged: bool = False) -> Growth:
    """The part of a plan for chunks of so many rows; cells: the most that a slot may have, of this kind.

    What grows with a slot's cells are the indexer's keys as matrix units multiply them, and keys and values, which are
    multiplied in place where they are bf16 and on the card (not `is_paged`).
    """
    text = values.get("text_config") or values
    kv_heads = text.get("num_key_value_heads") or text["num_attention_heads"]
    is_in_place = kind is CellKind.BF16 and not is_paged
    a_cell = 0.0 if is_in_place else 2.0 * ROUNDED_BYTES * kv_heads * head_dim_of(text)
    if text.get("indexer_head_dim"):
        a_cell += 2 * ROUNDED_BYTES * text["indexer_head_dim"] / text["indexer_compress_ratio"]
    fixed = reader_bytes(values, rows, cells, kind, is_paged=is_paged) - int(a_cell * cells)
    return Growth(CHUNKS, Place.CARD, fixed=fixed, per_position=a_cell)


def aside_room(values: Mapping[str, Any], rows: int, stages: int = 1) -> Growth:
    """The part of a plan for chunks of so many rows that are set aside, one of every stage, in main memory."""
    return Growth(CHUNKS_ASIDE, Place.RAM, fixed=stages * aside_bytes(values, rows))


def aside_bytes(values: Mapping[str, Any], rows: int) -> int:
    """Bytes of one chunk's room: its residual streams, the history of its n-grams and what its experts' counts take."""
    text = values.get("text_config") or values
    streams = rows * FLOAT_BYTES * text.get("hc_count", 1) * text["hidden_size"]
    return int(streams + FLOAT_BYTES * _experts(text) * text["num_hidden_layers"]) + HISTORY_BYTES


def ring_room(blobs: tuple[tuple[int, int], ...], experts: int) -> int:
    """Bytes of the card for experts on their way. blobs: (bytes of one, how many); experts: of a layer."""
    return ring_bytes(max(size for size, _ in blobs), experts) if blobs else 0


def reader_bytes(values: Mapping[str, Any], rows: int, cells: int, kind: CellKind, *, is_paged: bool = False) -> int:
    """Bytes of all pieces together."""
    text = values.get("text_config") or values
    attention = _attention_bytes(text, rows, cells, kind, is_paged)
    pieces = [*_stream_pieces(text, rows), attention, *_mixer_pieces(text, rows), *_mlp_pieces(text, rows)]
    pieces += [FIELDS * FLOAT_BYTES * rows, HEAD_ROWS * FLOAT_BYTES * text["vocab_size"], _wide_piece(text, rows)]
    return int(sum(pieces)) + PIECE_BYTES * len(pieces)


def _stream_pieces(text: Mapping[str, Any], rows: int) -> list[int]:
    streams, hidden, low = text.get("hc_count", 1), text["hidden_size"], text.get("hc_lowrank", 0)
    width = streams * hidden
    pieces = [rows * FLOAT_BYTES * width, rows * FLOAT_BYTES * hidden]  # streams, output
    if streams == 1:
        return [*pieces, rows * ROUNDED_BYTES * width]
    normed = max(ROUNDED_BYTES * width, ROUNDED_BYTES * _places(text) * _expert_width(text))
    mixed = rows * ROUNDED_BYTES * (hidden + low) + rows * FLOAT_BYTES * (low + 2 * streams)
    return [*pieces, rows * normed, mixed, 3 * PIECE_BYTES, min(rows, GATE_ROWS) * ROUNDED_BYTES * width]


def _mixer_pieces(text: Mapping[str, Any], rows: int) -> list[float]:
    query_width = text["num_attention_heads"] * head_dim_of(text)
    pieces: list[float] = [rows * ROUNDED_BYTES * max(query_width, delta_values(text))]
    if delta_values(text):
        pieces.append(_delta_bytes(text, min(DELTA_ROWS, -(-rows // CHUNK) * CHUNK)))
    if text.get("ple_layer_ids"):
        a_row = FLOAT_BYTES * text["hidden_size"] + (FLOAT_BYTES + ROUNDED_BYTES) * text["ple_embed_dim"]
        pieces.append(min(rows, NGRAM_ROWS) * a_row + 16 * PIECE_BYTES)
    return pieces


def _mlp_pieces(text: Mapping[str, Any], rows: int) -> list[int]:
    shared, ranks = text.get("shared_expert_intermediate_size") or 0, _places(text)
    pieces = [min(rows, DENSE_ROWS) * ROUNDED_BYTES * (text.get("intermediate_size") or 0)]
    if ranks:
        pieces += [rows * 3 * FLOAT_BYTES * ranks, FLOAT_BYTES * (_experts(text) + 1)]
        pieces.append(rows * (ROUNDED_BYTES * (shared + text["hidden_size"]) + FLOAT_BYTES))
        if text.get("hc_count", 1) == 1:
            pieces.append(rows * ROUNDED_BYTES * ranks * _expert_width(text))
    return [*pieces, 6 * PIECE_BYTES]


def _wide_piece(text: Mapping[str, Any], rows: int) -> int:
    """What holds an n-gram layer, projections, the router's products, rows of experts; of a dense MLP gate and up."""
    shared = text.get("shared_expert_intermediate_size") or 0
    widths = [delta_width(text), attention_width(text), _experts(text) + 2 * shared]
    by_rank = ROUNDED_BYTES * _places(text) * text["hidden_size"]
    dense = min(rows, DENSE_ROWS) * FLOAT_BYTES * 2 * (text.get("intermediate_size") or 0)
    ngram = 4 * FLOAT_BYTES * text.get("hc_count", 1) * text["hidden_size"] if text.get("ple_layer_ids") else 0
    return max(rows * max(FLOAT_BYTES * max(widths), by_rank), dense, min(rows, NGRAM_ROWS) * ngram)


def _attention_bytes(text: Mapping[str, Any], rows: int, cells: int, kind: CellKind, is_paged: bool) -> int:
    indexer = None
    if text.get("indexer_head_dim"):
        ratio = text["indexer_compress_ratio"]
        top = text["indexer_budget"] // ratio
        indexer = IndexerRowsShape(text["indexer_n_heads"], text["indexer_head_dim"], ratio, top)
    heads = text["num_attention_heads"], text.get("num_key_value_heads") or text["num_attention_heads"]
    shape = AttentionRowsShape(*heads, head_dim_of(text), indexer=indexer)
    work = AttentionReadWork.empty(rows, shape, cells, kind, "meta", is_paged=is_paged)
    return work.bytes_used() + 10 * PIECE_BYTES


def _delta_bytes(text: Mapping[str, Any], rows: int) -> int:
    shape = DeltaRowsShape(
        text["linear_num_key_heads"],
        text["linear_num_value_heads"],
        text["linear_key_head_dim"],
        text["linear_value_head_dim"],
        text["linear_conv_kernel_dim"],
    )
    return DeltaReadWork.empty(rows, shape, "meta").bytes_used


def _places(text: Mapping[str, Any]) -> int:
    return text.get("num_experts_per_tok") or 0 if _experts(text) else 0


def _experts(text: Mapping[str, Any]) -> int:
    return text.get("num_experts") or 0


def _expert_width(text: Mapping[str, Any]) -> int:
    return text.get("moe_intermediate_size") or 0
