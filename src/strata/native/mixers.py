"""Windows and reads in C++: the structures of csrc/mixers/mixers.h and a model handle around its calls.

Knows the C ABI, pointers and sizes; what the weights mean and where they come from is decided above.
"""

import ctypes
from typing import Any

import torch

from strata.errors import EngineError
from strata.native import library

_Int = ctypes.c_int32
_Long = ctypes.c_int64
_Float = ctypes.c_float
_Pointer = ctypes.c_void_p  # to float32 unless mixers.h says otherwise

MOST_PARTS = 4  # of `Matrices`
CELL_CODES = {"f32": 0, "bf16": 1, "code8": 2, "code4": 3}  # `StrataCellCode`


class Matrices(ctypes.Structure):
    """`StrataMatrices`: matrices that share an input, their outputs side by side; `order` points to int32."""

    _fields_ = (("count", _Int), ("outputs", _Int), ("parts", _Pointer * MOST_PARTS), ("order", _Pointer))


class Residual(ctypes.Structure):
    """`StrataResidual`."""

    _fields_ = (
        ("norm_scale", _Pointer),
        ("down", Matrices),
        ("up", Matrices),
        ("low_rank", _Int),
        ("has_inject", _Int),
    )


class DeltaNet(ctypes.Structure):
    """`StrataDeltaNet`."""

    _fields_ = (
        ("in_all", Matrices),
        ("out", Matrices),
        ("conv", _Pointer),
        ("decay_rate", _Pointer),
        ("decay_bias", _Pointer),
        ("norm_scale", _Pointer),
        ("key_heads", _Int),
        ("value_heads", _Int),
        ("key_dim", _Int),
        ("value_dim", _Int),
        ("conv_kernel", _Int),
        ("gate_is_sigmoid", _Int),
        ("eps", _Float),
        ("reserved", _Int),
    )


class Attention(ctypes.Structure):
    """`StrataAttention`."""

    _fields_ = (
        ("qkv", Matrices),
        ("out", Matrices),
        ("query_scale", _Pointer),
        ("key_scale", _Pointer),
        ("query_heads", _Int),
        ("kv_heads", _Int),
        ("head_dim", _Int),
        ("has_gate", _Int),
        ("eps", _Float),
        ("index_heads", _Int),
        ("index", Matrices),
        ("index_query_scale", _Pointer),
        ("index_key_scale", _Pointer),
        ("index_dim", _Int),
        ("budget", _Int),
        ("ratio", _Int),
        ("index_eps", _Float),
        ("key_code", _Int),
        ("value_code", _Int),
    )


class Ngram(ctypes.Structure):
    """`StrataNgram`."""

    _fields_ = (
        ("key", Matrices),
        ("value", Matrices),
        ("key_scale", _Pointer),
        ("query_scale", _Pointer),
        ("conv_scale", _Pointer),
        ("conv", _Pointer),
        ("table", Matrices),
        ("head_sizes", _Pointer),
        ("multipliers", _Pointer),
        ("ngram_size", _Int),
        ("heads_per_ngram", _Int),
        ("embed_dim", _Int),
        ("conv_kernel", _Int),
        ("end_of_text", _Long),
    )


class Mlp(ctypes.Structure):
    """`StrataMlp`."""

    _fields_ = (
        ("router", Matrices),
        ("layout", _Pointer),
        ("blobs", _Pointer),
        ("experts", _Int),
        ("per_token", _Int),
        ("normalize", _Int),
        ("width", _Int),
        ("gate_up", Matrices),
        ("down", Matrices),
        ("shared_gate", _Pointer),
        ("reads", _Pointer),
        ("file_layer", _Int),
        ("reserved", _Int),
    )


class Layer(ctypes.Structure):
    """`StrataLayer`."""

    _fields_ = (
        ("mixer_norm", _Pointer),
        ("mlp_norm", _Pointer),
        ("mixer_residual", Residual),
        ("mlp_residual", Residual),
        ("ngram", Ngram),
        ("is_attention", _Int),
        ("reserved", _Int),
        ("delta", DeltaNet),
        ("attention", Attention),
        ("mlp", Mlp),
    )


class Join(ctypes.Structure):
    """`StrataJoin`."""

    _fields_ = (
        ("embedding_map", Matrices),
        ("hidden_map", Matrices),
        ("embedding_scale", _Pointer),
        ("hidden_scale", _Pointer),
    )


class ModelShape(ctypes.Structure):
    """`StrataModelShape`."""

    _fields_ = (
        ("hidden", _Int),
        ("streams", _Int),
        ("layer_count", _Int),
        ("vocabulary", _Int),
        ("rotary_half", _Int),
        ("reserved", _Int),
        ("eps", _Float),
        ("reserved2", _Int),
        ("layers", _Pointer),
        ("frequencies", _Pointer),
        ("embedding", Matrices),
        ("final_residual", Residual),
        ("final_norm", _Pointer),
        ("head", Matrices),
        ("join", Join),
    )


class Window(ctypes.Structure):
    """`StrataWindow`."""

    _fields_ = (
        ("rows", _Int),
        ("slots", _Int),
        ("bounds", _Pointer),
        ("positions", _Pointer),
        ("token_ids", _Pointer),
        ("states", _Pointer),
        ("joined_hidden", _Pointer),
        ("ngram_rows", _Pointer),
        ("stored", _Pointer),
        ("final_delta", _Pointer),
        ("first_logit_row", _Int),
        ("reserved", _Int),
        ("hidden", _Pointer),
        ("logits", _Pointer),
        ("routed", _Pointer),
        ("is_finite", _Pointer),
    )


TIMED_PARTS = ("dense", "experts", "mixers", "head", "residuals", "commit")


class Times(ctypes.Structure):
    """`StrataTimes`: nanoseconds by part, then how many windows and rows they were for."""

    _fields_ = tuple((name, ctypes.c_uint64) for name in (*TIMED_PARTS, "windows", "rows"))


def encode_cells(code: str, heads: torch.Tensor, codes: torch.Tensor, scales: torch.Tensor | None) -> None:
    """Store float32 heads [..., head_dim] as cells of a code do; all contiguous, `scales` float16 or None."""
    count, head_dim = heads.numel() // heads.shape[-1], heads.shape[-1]
    scales_at = None if scales is None else scales.data_ptr()
    call = library.load().strata_encode_cells
    library.check(call(CELL_CODES[code], ctypes.c_int64(count), head_dim, ctypes.c_void_p(heads.data_ptr()),
                       ctypes.c_void_p(codes.data_ptr()), ctypes.c_void_p(scales_at)))  # fmt: skip


def table_rows(table: Matrices, row_ids: torch.Tensor, to: torch.Tensor) -> None:
    """to [n, columns] float32 = the values of the table's rows `row_ids` [n] int64; both contiguous."""
    call = library.load().strata_table_rows
    library.check(call(ctypes.byref(table), ctypes.c_void_p(row_ids.data_ptr()), ctypes.c_int64(row_ids.numel()),
                       ctypes.c_void_p(to.data_ptr())))  # fmt: skip


class Model:
    """A model in the native library. The description's pointers must outlive it; one caller at a time."""

    def __init__(self, shape: ModelShape, pool: ctypes.c_void_p) -> None:
        self._library = library.load()
        self._library.strata_model_struct_bytes.restype = ctypes.c_int64
        ours = sum(ctypes.sizeof(struct) for struct in (ModelShape, Layer, Window, Times))
        if self._library.strata_model_struct_bytes() != ours:
            raise EngineError("the native library describes models otherwise than this package: install strata again")
        self._library.strata_window_floats.restype = ctypes.c_int64
        self._library.strata_read_floats.restype = ctypes.c_int64
        self._library.strata_model_destroy.restype = None
        self._library.strata_model_times.restype = None
        handle = ctypes.c_void_p()
        library.check(self._library.strata_model_create(ctypes.byref(shape), pool, ctypes.byref(handle)))
        self._handle = handle

    def window_floats(self, rows: int) -> int:
        """Floats of `Window.stored`."""
        return int(self._library.strata_window_floats(self._handle, rows))

    def read_floats(self, rows: int) -> int:
        """Floats of `Window.stored` in a read."""
        return int(self._library.strata_read_floats(self._handle, rows))

    def read_layer(self, window: Window, layer: int, replaced: Any) -> None:
        """One layer of a read, whose rows become state; `replaced` is an array of pointers as `StrataNewState`."""
        library.check(self._library.strata_read_layer(self._handle, ctypes.byref(window), layer, replaced))

    def window(self, window: Window) -> None:
        """Compute a window's rows."""
        library.check(self._library.strata_window(self._handle, ctypes.byref(window)))

    def commit(self, window: Window, slot: int, accepted: int, states: Any, replaced: Any) -> None:
        """Make rows state; arrays of pointers: `states` as `StrataLayerState`, `replaced` as `StrataNewState`."""
        called = self._library.strata_commit(self._handle, ctypes.byref(window), slot, accepted, states, replaced)
        library.check(called)

    def times(self) -> Times:
        """What the parts have taken so far."""
        times = Times()
        self._library.strata_model_times(self._handle, ctypes.byref(times))
        return times

    def __del__(self) -> None:
        if getattr(self, "_handle", None):
            self._library.strata_model_destroy(self._handle)
