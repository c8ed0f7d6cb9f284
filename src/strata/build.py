"""The composition root: from a model's directory to a tokenizer and an engine that belong together.

The only file that knows every part and wires them; no part is made anywhere else. Decides nothing that a part could.
"""

import math
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from strata import models_shipped
from strata.engine.engine import TokenEngine, is_out_of_memory
from strata.errors import ConfigError, EngineError, ModelError, SettingsError
from strata.hardware import read_cpu, read_memory
from strata.models.base import LanguageModel
from strata.models.families import Family, family_of
from strata.models.fast.attach import attach_fast_windows
from strata.models.needs import Part, part_of, place_in_ram
from strata.models.qwen4_exp import RESIDENT_TABLE_BYTES
from strata.native import library
from strata.native.pool import Pool
from strata.settings import EngineSettings
from strata.text.loading import tokenizer_of
from strata.text.tokenizer import Tokenizer
from strata.types import ProgressCallback
from strata.weights.opening import ModelSource, has_weights, open_model

# Below this width a row is too little work to share: at 256, on two cores with other work, a second thread read prompts
# three to seven times slower and decoded no faster (docs/log.md, 2026-11-30).
NARROW_HIDDEN = 1024


@dataclass(frozen=True)
class LoadedModel:
    """A model that is ready to answer."""

    directory: Path
    tokenizer: Tokenizer
    engine: TokenEngine
    end_of_text_ids: frozenset[int]
    notices: tuple[str, ...]  # sentences for the user about what was left out


def load_model(
    directory: Path | None, settings: EngineSettings, on_progress: ProgressCallback | None = None
) -> LoadedModel:
    """Load a model directory or GGUF file; the shipped model if none is given. Cheap checks come before weights.

    Sets torch's number of threads for the whole process. Raises ModelError, TextError or SettingsError, and EngineError
    if memory runs out.
    """
    if directory is None:
        directory = models_shipped.default_path()
        if not has_weights(directory):
            raise ModelError("this copy of strata ships no model: name one with --model")
    source = open_model(directory, settings.quantize)
    family = family_of(source.config)
    config = family.parse_config(source.config)
    _check_context(settings, config.max_position)
    tokenizer = tokenizer_of(source)
    if tokenizer.vocabulary_size > config.vocabulary_size:
        raise ConfigError(
            f"{directory}: the tokenizer has {tokenizer.vocabulary_size:,} ids, the model's vocabulary "
            f"{config.vocabulary_size:,}: they do not belong together"
        )
    _check_memory(family, config, source, settings)
    torch.set_num_threads(settings.threads or fitting_threads(config.hidden_size))
    model = _load_weights(family, config, source, settings, on_progress)
    if _wants_native_windows(settings):
        _attach_native_windows(model, source, settings.threads or fitting_threads(config.hidden_size), on_progress)
    notices = source.notices
    if settings.drafts and model.draft_head is None:
        notices += (f"drafts = {settings.drafts} changes nothing: this model has no draft layer",)
    return LoadedModel(
        directory=directory,
        tokenizer=tokenizer,
        engine=TokenEngine(model, settings),
        end_of_text_ids=tokenizer.eos_token_ids | frozenset(config.end_of_text_ids),
        notices=notices,
    )


def fitting_threads(hidden_size: int) -> int:
    """Threads for a model of this width where the user named none."""
    return 1 if hidden_size < NARROW_HIDDEN else read_cpu().usable_cores


def _check_context(settings: EngineSettings, max_position: int) -> None:
    if settings.context is not None and settings.context > max_position:
        raise SettingsError(
            f"setting context: {settings.context} does not work; this model was made for at most {max_position} tokens"
        )


def _check_memory(family: Family, config: Any, source: ModelSource, settings: EngineSettings) -> None:
    """Refuse a model that does not fit before the system ends the process for it."""
    bytes_each = getattr(torch, settings.dtype).itemsize
    names = _wanted_names(family.expected_tensors(config), settings)
    sizes = {name: math.prod(shape) * bytes_each for name, shape in family.expected_tensors(config).items()}
    needed = place_in_ram({name: sizes[name] for name in names}, 0, RESIDENT_TABLE_BYTES).ram_bytes
    if _wants_native_windows(settings):  # windows have the matrices a second time, in the code of the file
        needed += sum(
            source.stored_bytes(name) for name in set(names) & set(source.names()) if part_of(name) is not Part.NGRAM
        )
    memory = read_memory()
    if memory.total and needed > memory.usable:
        raise ModelError(
            f"this model needs {needed / 2**30:.1f} GiB of memory in {settings.dtype} and "
            f"{memory.usable / 2**30:.1f} GiB are free: `strata inspect` shows what takes how much"
        )


def _wants_native_windows(settings: EngineSettings) -> bool:
    return settings.cpu_path == "native" and settings.dtype == "float32" and library.is_available()


def _attach_native_windows(
    model: LanguageModel, source: ModelSource, threads: int, on_progress: ProgressCallback | None
) -> None:
    """Windows in C++ from now on, on `threads` threads of their own."""
    attach_fast_windows(model, source, Pool(threads), on_progress)


def _wanted_names(names: Collection[str], settings: EngineSettings) -> list[str]:
    """The tensors that are read: the draft layer's only if it is used."""
    return [name for name in names if settings.drafts or part_of(name) is not Part.MTP]


class _ChosenTensors:
    """A WeightSource that shows only some of another's tensors; what it hides is absent for a family."""

    def __init__(self, source: ModelSource, names: Collection[str]) -> None:
        self._names = names
        self.shape, self.tensor, self.rows = source.shape, source.tensor, source.rows

    def names(self) -> Collection[str]:
        return self._names


def _load_weights(
    family: Family,
    config: Any,
    source: ModelSource,
    settings: EngineSettings,
    on_progress: ProgressCallback | None,
) -> LanguageModel:
    """Read the tensors that the family wants, in the compute dtype, and report the bytes read."""
    held = _wanted_names(source.names(), settings)
    if on_progress is not None:

        def report(done: int, total: int, _: str) -> None:
            on_progress("loading the model", min(done, total), total)  # a family may read a tensor twice

        source.report_progress(set(family.expected_tensors(config)).intersection(held), report)
    try:
        return family.load(config, _ChosenTensors(source, held), getattr(torch, settings.dtype))
    except (MemoryError, RuntimeError) as failure:
        if not is_out_of_memory(failure):
            raise
        raise EngineError(
            "out of memory while the weights were read: `strata inspect` shows what takes how much"
        ) from failure
    finally:
        source.report_progress((), None)
