"""Which experts llama.cpp chose, layer by layer, taken from its graph while it computes.

Knows the name of one tensor of that graph and where a ggml tensor (0.25) keeps its sizes; knows no model.
"""

import ctypes
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

CHOSEN = b"ffn_moe_topk-"  # with the layer's number: expert ids, int32 [rows, experts per token]
_SIZES_AT, _STRIDES_AT = 16, 48  # bytes into a ggml tensor: four numbers of 64 bits each


class RouteWatch:
    """The callback that llama.cpp's context takes, and the ids that it has seen since `take`."""

    def __init__(self) -> None:
        import llama_cpp

        base = ctypes.CDLL(str(Path(llama_cpp.__file__).parent / "lib" / "libggml-base.so"))
        base.ggml_get_name.restype, base.ggml_get_name.argtypes = ctypes.c_char_p, [ctypes.c_void_p]
        base.ggml_get_data.restype, base.ggml_get_data.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
        self._base: Any = base
        self._seen: dict[int, list[NDArray[np.int32]]] = {}
        self.callback = llama_cpp.ggml_backend_sched_eval_callback(self._look)

    def take(self) -> NDArray[np.int32]:
        """Expert ids in rising order [sparse layers, rows, experts per token]; forgets them."""
        found = [np.sort(np.concatenate(self._seen[layer]), axis=1) for layer in sorted(self._seen)]
        self._seen = {}
        return np.stack(found) if found else np.zeros((0, 0, 0), np.int32)

    def _look(self, tensor: int, is_question: bool, _: object) -> bool:
        name = self._base.ggml_get_name(tensor)
        is_wanted = name.startswith(CHOSEN)
        if is_wanted and not is_question:
            self._seen.setdefault(int(name[len(CHOSEN) :]), []).append(self._ids(tensor))
        return True if not is_question else is_wanted

    def _ids(self, tensor: int) -> NDArray[np.int32]:
        count, rows = np.ctypeslib.as_array((ctypes.c_int64 * 2).from_address(tensor + _SIZES_AT))
        stride = (ctypes.c_int64 * 2).from_address(tensor + _STRIDES_AT)[1]
        start = self._base.ggml_get_data(tensor)
        each = [(ctypes.c_int32 * int(count)).from_address(start + row * stride) for row in range(int(rows))]
        return np.array([list(ids) for ids in each], np.int32)
