"""The C ABI as ctypes sees it: the structs and the functions of csrc/strata_native.h, line for line.

Knows no tensor; what is put into the structs is decided beside their users.
"""

import ctypes
import os
from ctypes import (
    POINTER,
    Structure,
    c_char,
    c_char_p,
    c_double,
    c_float,
    c_int8,
    c_int32,
    c_int64,
    c_uint32,
    c_uint64,
    c_void_p,
)
from typing import Any

MATRIX_ARRAYS = 5  # codes, scales, super scales, mins, super mins
TABLE_ENTRIES = 16
SENTENCE_BYTES = 200


class Matrix(Structure):
    """StrataMatrix: a packed matrix; null where a kind has no such array."""

    _fields_ = (
        ("code", c_int32),
        ("scale_kind", c_int32),
        ("min_kind", c_int32),
        ("sub_block", c_int32),
        ("rows", c_int32),
        ("columns", c_int32),
        ("table", c_int8 * TABLE_ENTRIES),
        ("post_scale", c_float),
        ("reserved", c_int32),
        ("codes", c_void_p),
        ("scales", c_void_p),
        ("super_scales", c_void_p),
        ("mins", c_void_p),
        ("super_mins", c_void_p),
    )


class Product(Structure):
    """StrataProduct: a matrix and where its results go."""

    _fields_ = (("matrix", POINTER(Matrix)), ("y", c_void_p), ("y_stride", c_int64))


class ExpertLayout(Structure):
    """StrataExpertLayout: the forms of gate, up and down, and where their arrays lie in a blob (-1: none)."""

    _fields_ = (
        ("gate", Matrix),
        ("up", Matrix),
        ("down", Matrix),
        ("offsets", (c_int64 * MATRIX_ARRAYS) * 3),
        ("post_scales_offset", c_int64),
        ("blob_bytes", c_int64),
    )


class ExpertJob(Structure):
    """StrataExpertJob: one expert and the rows that chose it."""

    _fields_ = (
        ("blob", c_void_p),
        ("rows", c_void_p),
        ("slots", c_void_p),
        ("row_count", c_int32),
        ("reserved", c_int32),
    )


class LayerExperts(Structure):
    """StrataLayerExperts: the experts of one layer as the doorbell service finds them."""

    _fields_ = (
        ("layout", POINTER(ExpertLayout)),
        ("blobs", POINTER(c_void_p)),
        ("expert_count", c_int32),
        ("reserved", c_int32),
    )


class Mailbox(Structure):
    """StrataMailbox: the shared memory of one window in flight."""

    _fields_ = (
        ("door", c_void_p),
        ("done", c_void_p),
        ("gate", c_void_p),
        ("status", c_void_p),
        ("header", c_void_p),
        ("entries", c_void_p),
        ("x", c_void_p),
        ("q", c_void_p),
        ("d", c_void_p),
        ("out", c_void_p),
        ("max_rows", c_int32),
        ("max_entries", c_int32),
        ("ranks", c_int32),
        ("hidden", c_int32),
    )


class DoorbellCounters(Structure):
    """StrataDoorbellCounters: what a service has done so far."""

    _fields_ = (("requests", c_uint64), ("experts", c_uint64), ("bytes", c_uint64), ("busy_ns", c_uint64))


class DoorbellState(Structure):
    """StrataDoorbellState: a look at a mailbox."""

    _fields_ = (
        ("door", c_uint32),
        ("done", c_uint32),
        ("answered", c_uint32),
        ("layer", c_int32),
        ("rows", c_int32),
        ("entries", c_int32),
        ("is_in_flight", c_int32),
        ("is_late", c_int32),
        ("failures", c_uint64),
        ("failed_layer", c_int32),
        ("reserved", c_int32),
        ("failure", c_char * SENTENCE_BYTES),
    )


class Packing(Structure):
    """StrataPacking: equal matrices as a GGUF file holds them, and where their tiles go."""

    _fields_ = (
        ("type", c_int32),
        ("rows", c_int32),
        ("columns", c_int32),
        ("count", c_int32),
        ("file", c_int32),
        ("refused", c_int32),
        ("read_error", c_int32),
        ("reserved", c_int32),
        ("place", c_int64),
        ("place_stride", c_int64),
        ("array_stride", c_int64),
        ("arrays", c_void_p * MATRIX_ARRAYS),
    )


class FileStamp(Structure):
    """StrataFileStamp: a file as it was when the model was opened."""

    _fields_ = (("device", c_int64), ("inode", c_int64), ("size", c_int64), ("changed_ns", c_int64))

    @classmethod
    def of(cls, opened: os.stat_result) -> "FileStamp":
        """From what the system said of it then."""
        return cls(opened.st_dev, opened.st_ino, opened.st_size, opened.st_mtime_ns)


class TablePiece(Structure):
    """StrataTablePiece: consecutive rows of a table, one after another in a file."""

    _fields_ = (
        ("name", c_char_p),
        ("opened", FileStamp),
        ("begin", c_int64),
        ("file", c_int32),
        ("rows", c_int32),
        ("scales", c_void_p),
    )


class FileTable(Structure):
    """StrataFileTable: a table that stays in its files."""

    _fields_ = (
        ("form", Matrix),
        ("type", c_int32),
        ("scale_rows", c_int32),
        ("piece_count", c_int32),
        ("reserved", c_int32),
        ("pieces", POINTER(TablePiece)),
    )


class ModelFile(Structure):
    """StrataModelFile: a file of the model."""

    _fields_ = (("name", c_char_p), ("descriptor", c_int32), ("reserved", c_int32), ("opened", FileStamp))


class FilePart(Structure):
    """StrataFilePart: one matrix of every expert of a layer in a file."""

    _fields_ = (("type", c_int32), ("file", c_int32), ("begin", c_int64), ("stride", c_int64))


class FileLayer(Structure):
    """StrataFileLayer: the experts of one layer in files."""

    _fields_ = (
        ("layout", POINTER(ExpertLayout)),
        ("factors", c_void_p),
        ("parts", FilePart * 3),
        ("expert_count", c_int32),
        ("reserved", c_int32),
    )


class ReadCounters(Structure):
    """StrataReadCounters: what was read because somebody asked."""

    _fields_ = (("experts", c_uint64), ("bytes", c_uint64), ("ns", c_uint64))


# name -> what it returns (c_int32: 0 or an error's number), what it takes
FUNCTIONS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "strata_last_error": (c_char_p, ()),
    "strata_cpu_features": (c_uint64, ()),
    "strata_force_isa": (c_int32, (c_int32,)),
    "strata_current_isa": (c_int32, ()),
    "strata_pool_create": (c_int32, (c_int32, c_int32, c_int32, POINTER(c_void_p))),
    "strata_pool_destroy": (None, (c_void_p,)),
    "strata_pool_threads": (c_int32, (c_void_p,)),
    "strata_pool_hold": (None, (c_void_p,)),
    "strata_pool_release": (None, (c_void_p,)),
    "strata_matrix_check": (c_int32, (POINTER(Matrix),)),
    "strata_matrix_rows": (
        c_int32,
        (c_void_p, POINTER(Matrix), c_void_p, c_int32, c_int64, c_void_p, c_int64),
    ),
    "strata_matrices_rows": (c_int32, (c_void_p, POINTER(Product), c_int32, c_void_p, c_int32, c_int64)),
    "strata_quantize": (c_int32, (c_void_p, c_int32, c_void_p, c_void_p)),
    "strata_expert_layout": (c_int32, (POINTER(ExpertLayout),)),
    "strata_experts": (
        c_int32,
        (
            c_void_p,
            POINTER(ExpertLayout),
            POINTER(ExpertJob),
            c_int32,
            c_void_p,
            c_int64,
            c_int32,
            c_void_p,
            c_int64,
        ),
    ),
    "strata_combine": (
        c_int32,
        (
            c_void_p,
            c_int32,
            c_int32,
            c_int32,
            c_void_p,
            c_void_p,
            c_void_p,
            c_void_p,
            c_int64,
            c_void_p,
            c_void_p,
            c_int64,
        ),
    ),
    "strata_silu_mul": (c_int32, (c_void_p, c_void_p, c_void_p, c_int64)),
    "strata_doorbell_create": (
        c_int32,
        (c_void_p, POINTER(LayerExperts), c_int32, POINTER(Mailbox), c_int32, c_int32, POINTER(c_void_p)),
    ),
    "strata_doorbell_begin": (c_int32, (c_void_p, c_int32)),
    "strata_doorbell_end": (c_int32, (c_void_p, c_int32)),
    "strata_doorbell_rewind": (c_int32, (c_void_p, c_int32)),
    "strata_doorbell_place": (c_int32, (c_void_p, c_int32, c_int32, c_void_p)),
    "strata_doorbell_counters": (c_int32, (c_void_p, POINTER(DoorbellCounters))),
    "strata_doorbell_state": (c_int32, (c_void_p, c_int32, POINTER(DoorbellState))),
    "strata_doorbell_stop": (c_int32, (c_void_p,)),
    "strata_doorbell_destroy": (c_int32, (c_void_p,)),
    "strata_doorbell_read": (c_int32, (c_void_p, c_void_p)),
    "strata_read_cache_create": (
        c_int32,
        (POINTER(ModelFile), c_int32, POINTER(FileLayer), c_int32, c_void_p, c_int64, POINTER(c_void_p)),
    ),
    "strata_read_cache_destroy": (None, (c_void_p,)),
    "strata_read_cache_fill": (
        c_int32,
        (c_void_p, c_void_p, c_int32, POINTER(c_int32), POINTER(c_void_p), c_int32),
    ),
    "strata_read_cache_counters": (c_int32, (c_void_p, POINTER(ReadCounters))),
    "strata_tables_create": (
        c_int32,
        (c_void_p, POINTER(FileTable), POINTER(Mailbox), c_int32, c_int32, POINTER(c_void_p)),
    ),
    "strata_tables_waited": (c_int32, (c_void_p, POINTER(c_uint64))),
    "strata_packs": (c_int32, (c_int32,)),
    "strata_pack": (c_int32, (c_void_p, POINTER(Packing), c_int32)),
    "strata_read_memory": (c_int32, (c_void_p, c_void_p, c_int64, POINTER(c_double))),
    "strata_multiply_rate": (c_int32, (c_void_p, c_int64, POINTER(c_double))),
}


def declare(library: ctypes.CDLL) -> None:
    """Give every function of the ABI its types. Raises AttributeError for one that the library does not have."""
    for name, (returns, takes) in FUNCTIONS.items():
        function = getattr(library, name)
        function.restype, function.argtypes = returns, takes
