"""llama.cpp through its Python package: token ids in, logits out, for the peer bench and for the oracle.

Knows that package's lowest interface (0.3.36); knows nothing of Strata.
"""

import ctypes
import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from strata.errors import EngineError, ModelError

PACKAGE = "llama-cpp-python==0.3.36"
HOW_TO_GET_IT = f"llama.cpp is not here: pip install {PACKAGE} builds it (some minutes; needs a C++ compiler and cmake)"
HOW_TO_GET_IT_FOR_GPUS = f'CMAKE_ARGS="-DGGML_CUDA=on" pip install {PACKAGE} builds it (half an hour on two cores)'
BATCH_ROWS = 512  # that pass its model together, unless more are asked for
ALL_LAYERS = 99
LOAD_INTO_MEMORY = 0  # LLAMA_LOAD_MODE_NONE: experts that the processor computes are then packed for it, and pinned
EXPERTS_OF_A_LAYER = r"blk\.{}\.ffn_(up|down|gate|gate_up)_(ch|)exps"  # what `--n-cpu-moe` puts on the processor


@dataclass(frozen=True)
class Placement:
    """Where a model's parts lie.

    on_gpu: every layer in the GPU's memory; the package must have been built for it. cpu_expert_layers: but the routed
    experts of these in main memory, where the processor computes them. no_host: these in memory that is not pinned.
    """

    on_gpu: bool = False
    cpu_expert_layers: tuple[int, ...] = ()
    no_host: bool = False


def is_installed() -> bool:
    """Whether the package is there; does not load it."""
    return importlib.util.find_spec("llama_cpp") is not None


class LlamaCppModel:
    """One GGUF file in llama.cpp with one conversation.

    exact: keys and values in float32 and plain attention, to compare logits; else llama.cpp's own choices, for speed.
    watch: the package's `ggml_backend_sched_eval_callback`, shown every tensor that it asks for while it is computed.
    batch_rows: of a prompt that pass the model together (both its `-b` and `-ub`). Raises EngineError if the
    package is missing, ModelError if it cannot load the file.
    """

    def __init__(
        self,
        file: Path,
        threads: int,
        context: int,
        exact: bool = False,
        watch: Any = None,
        placement: Placement = Placement(),
        batch_rows: int = BATCH_ROWS,
    ) -> None:
        if not is_installed():
            raise EngineError(HOW_TO_GET_IT)
        import llama_cpp

        self._api: Any = llama_cpp
        self._silence = llama_cpp.llama_log_callback(lambda level, text, data: None)
        llama_cpp.llama_log_set(self._silence, ctypes.c_void_p(0))
        llama_cpp.llama_backend_init()
        if placement.on_gpu and not llama_cpp.llama_supports_gpu_offload():
            raise EngineError(f"this llama.cpp was built without a GPU: {HOW_TO_GET_IT_FOR_GPUS}")
        model_options = llama_cpp.llama_model_default_params()
        model_options.n_gpu_layers = ALL_LAYERS if placement.on_gpu else 0
        if placement.cpu_expert_layers:
            self._overrides = _experts_on_processor(placement.cpu_expert_layers)
            model_options.tensor_buft_overrides = ctypes.addressof(self._overrides)
            model_options.load_mode, model_options.no_host = LOAD_INTO_MEMORY, placement.no_host
        self._model = llama_cpp.llama_model_load_from_file(str(file).encode(), model_options)
        if not self._model:
            raise ModelError(f"llama.cpp cannot load {file}")
        options = llama_cpp.llama_context_default_params()
        options.n_ctx = context
        options.n_batch = options.n_ubatch = self._batch_rows = batch_rows
        options.n_threads = options.n_threads_batch = threads
        if exact:
            options.type_k = options.type_v = llama_cpp.GGML_TYPE_F32
            options.flash_attn_type = llama_cpp.LLAMA_FLASH_ATTN_TYPE_DISABLED
        if watch is not None:
            options.cb_eval = watch
        self._context = llama_cpp.llama_init_from_model(self._model, options)
        if not self._context:
            raise ModelError(f"llama.cpp cannot make a context of {context:,} tokens for {file}")
        self._vocab = llama_cpp.llama_model_get_vocab(self._model)
        self._batch = llama_cpp.llama_batch_init(batch_rows, 0, 1)
        self.vocabulary_size = int(llama_cpp.llama_vocab_n_tokens(self._vocab))
        self.position = 0

    def set_threads(self, threads: int) -> None:
        """Compute with so many from now on."""
        self._api.llama_set_n_threads(self._context, threads, threads)

    def clear(self) -> None:
        """Forget the conversation."""
        self._api.llama_memory_clear(self._api.llama_get_memory(self._context), True)
        self.position = 0

    def read(self, token_ids: Sequence[int], all_rows: bool = False) -> NDArray[np.float32]:
        """Logits of the last row [1, vocabulary], or of every row; the conversation goes on by these tokens."""
        parts = []
        for start in range(0, len(token_ids), self._batch_rows):
            part = token_ids[start : start + self._batch_rows]
            self._decode(part, all_rows, ends=start + len(part) == len(token_ids))
            if all_rows:
                parts.append(self._logits(len(part)).copy())
        return np.concatenate(parts) if all_rows else self._logits(1).copy()

    def tokenize(self, text: str, control_tokens: bool = False, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a text."""
        raw = text.encode()
        room = len(raw) + 8
        ids = (self._api.llama_token * room)()
        count = self._api.llama_tokenize(self._vocab, raw, len(raw), ids, room, add_special_tokens, control_tokens)
        if count < 0:
            raise EngineError(f"llama.cpp made {-count} tokens of {len(raw)} bytes")
        return list(ids[:count])

    def render(self, messages: Sequence[tuple[str, str]]) -> str:
        """Messages (role, content) by the file's own chat template, as the package renders it."""
        from llama_cpp.llama_chat_format import Jinja2ChatFormatter

        template = self._api.llama_model_chat_template(self._model, None)
        if template is None:
            raise ModelError("the file has no chat template")
        ends = [self._api.llama_vocab_get_text(self._vocab, token).decode() for token in self._start_and_end()]
        make = Jinja2ChatFormatter(template.decode(), eos_token=ends[1], bos_token=ends[0])
        return str(make(messages=[{"role": role, "content": content} for role, content in messages]).prompt)

    def is_end(self, token_id: int) -> bool:
        """Whether a token ends the text."""
        return bool(self._api.llama_vocab_is_eog(self._vocab, token_id))

    def close(self) -> None:
        """Let go of the model."""
        self._api.llama_batch_free(self._batch)
        self._api.llama_free(self._context)
        self._api.llama_model_free(self._model)

    def _start_and_end(self) -> tuple[int, int]:
        return self._api.llama_vocab_bos(self._vocab), self._api.llama_vocab_eos(self._vocab)

    def _decode(self, token_ids: Sequence[int], all_rows: bool, ends: bool) -> None:
        batch, count = self._batch, len(token_ids)
        batch.n_tokens = count
        for row, token_id in enumerate(token_ids):
            batch.token[row] = token_id
            batch.pos[row] = self.position + row
            batch.n_seq_id[row] = 1
            batch.seq_id[row][0] = 0
            batch.logits[row] = all_rows or (ends and row == count - 1)
        code = self._api.llama_decode(self._context, batch)
        if code != 0:
            raise EngineError(f"llama.cpp failed with code {code} on {count} tokens at position {self.position}")
        self.position += count

    def _logits(self, rows: int) -> NDArray[np.float32]:
        pointer = self._api.llama_get_logits(self._context)
        return np.ctypeslib.as_array(pointer, shape=(rows, self.vocabulary_size))


class _Override(ctypes.Structure):
    """A pattern of tensor names and the kind of memory for them: llama_model_tensor_buft_override."""

    _fields_ = (("pattern", ctypes.c_char_p), ("buffer_type", ctypes.c_void_p))


def _experts_on_processor(layers: Sequence[int]) -> Any:
    """One override for each layer and an empty one behind them."""
    from llama_cpp._ggml import libggml

    libggml.ggml_backend_cpu_buffer_type.restype = ctypes.c_void_p
    main_memory = libggml.ggml_backend_cpu_buffer_type()
    found = [_Override(EXPERTS_OF_A_LAYER.format(layer).encode(), main_memory) for layer in layers]
    return (_Override * (len(found) + 1))(*found, _Override(None, None))
