"""Facts about a model directory for `strata inspect`: config, headers and this PC joined; no weight is read.

Knows where each fact comes from; how it looks on a terminal is the command's business.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from strata.engine.cpu_loading import cpu_needs, held_as, held_sizes
from strata.engine.cpu_memory import CpuNeeds, plan_cpu_memory
from strata.errors import ModelError, SettingsError
from strata.hardware import Hardware, MemoryFacts, disk_free_bytes, read_hardware
from strata.models.families import family_of
from strata.models.needs import (
    ParameterCount,
    Part,
    Placement,
    attention_layers,
    count_parameters,
    part_of,
    place_in_ram,
    place_on_card,
    reading_bytes,
    state_bytes,
)
from strata.models.qwen4_exp import RESIDENT_TABLE_BYTES
from strata.quant.cell_codes import CellKind
from strata.quant.growth import Packed, packed_format
from strata.settings import EngineSettings
from strata.text.loading import tokenizer_of
from strata.text.text_facts import MISSING, TextFacts, read_text_facts
from strata.text.tokenizer import load_tokenizer
from strata.weights.directory import read_config
from strata.weights.fit import Shapes, require_fit
from strata.weights.fp8 import scale_shape
from strata.weights.gguf_source import GgufSource
from strata.weights.names import is_fp8_matrix, is_hash_constant
from strata.weights.opening import ModelSource, has_weights, open_model
from strata.weights.quantization import read_weight_block


@dataclass(frozen=True)
class StoredWeights:
    """What the files hold, or what the config says that they would hold."""

    is_present: bool
    total_bytes: int
    formats: dict[str, int]  # storage type -> bytes
    by_part: dict[str, dict[str, int]]  # part of the model -> storage type -> bytes
    notices: tuple[str, ...]


@dataclass(frozen=True)
class Verdict:
    """Whether this PC can run the model on its CPU today, in one sentence with numbers."""

    can_run: bool
    sentence: str


@dataclass(frozen=True)
class ModelReport:
    """Everything that `strata inspect` shows."""

    path: str
    family: str
    config: Mapping[str, Any]  # the text model's fields
    layers: dict[str, int]  # kind -> number
    parameters: ParameterCount
    stored: StoredWeights
    has_tokenizer: bool
    has_template: bool
    text: TextFacts
    dtype: str  # what weights are held in, in words
    context: int
    state_fixed_bytes: int
    state_bytes_per_token: float
    today: Placement
    with_card: Placement
    hardware: Hardware
    disk_free: int
    verdict: Verdict


def make_report(directory: Path, context: int | None, engine: EngineSettings) -> ModelReport:
    """Read config.json and the headers of a model directory, or the header of a GGUF file.

    context: tokens for which state is counted, None for 8,192 or the model's own if that is less. `engine` says in
    which type the weights are held and whether draft layers are loaded. Raises ModelError for a model that cannot be
    used, WeightFileError if files and config disagree.
    """
    dtype = engine.dtype
    source = open_model(directory) if has_weights(directory) else None
    config = source.config if source is not None else read_config(directory)
    family = family_of(config)
    parsed = family.parse_config(config)
    shapes = family.expected_tensors(parsed)
    if source is not None:
        require_fit(source, shapes)
    text = config.get("text_config") or config
    tokens = _context_of(text, context)
    element_bytes = getattr(torch, dtype).itemsize
    state = state_bytes(config, element_bytes, CellKind(engine.kv_kind))
    stored_sizes = _stored_sizes(shapes, source, config)
    hardware = read_hardware()
    loaded = {name: shape for name, shape in shapes.items() if engine.drafts > 0 or part_of(name) is not Part.MTP}
    if source is None:
        sizes, held = {name: math.prod(shape) * element_bytes for name, shape in loaded.items()}, dtype
    else:
        sizes, held = held_sizes(source, loaded, engine), held_as(engine)
    working = reading_bytes(config, min(engine.cpu_chunk_rows, parsed.max_position))
    today = place_in_ram(sizes, state.at(tokens), RESIDENT_TABLE_BYTES, working)
    has_tokenizer = _has_tokenizer(source, directory)
    missing = [name for name, held in (("tokenizer", has_tokenizer), ("weights", source)) if not held]
    verdict = decide(today, hardware.memory, f"{held} with one conversation of {tokens:,} tokens", missing)
    if source is not None and not verdict.can_run:
        verdict = decide_with_files(verdict, cpu_needs(source, family, parsed, engine), hardware.memory, engine)
    return ModelReport(
        path=str(directory),
        family=family.name,
        config=text,
        layers=_layer_kinds(text),
        parameters=count_parameters(shapes, text.get("num_experts_per_tok", 0)),
        stored=_stored_weights(source, shapes, stored_sizes, config),
        has_tokenizer=has_tokenizer,
        has_template=_has_template(source, directory),
        text=_text_facts(source, directory, parsed) if has_tokenizer else MISSING,
        dtype=held,
        context=tokens,
        state_fixed_bytes=state.fixed,
        state_bytes_per_token=state.per_token,
        today=today,
        with_card=place_on_card(stored_sizes, state_bytes(config, 4, CellKind(engine.kv_kind)).at(tokens)),
        hardware=hardware,
        disk_free=disk_free_bytes(directory if directory.is_dir() else directory.absolute().parent),
        verdict=verdict,
    )


def decide(today: Placement, memory: MemoryFacts, conditions: str, missing: Sequence[str] = ()) -> Verdict:
    """Compare what the model needs on the CPU alone with what this PC has free.

    `conditions` says in words for what `today` counts; `missing` names what the directory lacks.
    """
    needed, usable = today.ram_bytes, memory.usable
    amount = f"{gib(needed)} of RAM in {conditions}, {gib(usable)} are free"
    if needed <= usable:
        wait = (
            f" once its {' and '.join(missing)} {'are' if missing[-1] == 'weights' else 'is'} there" if missing else ""
        )
        start = f"This PC could run it on its CPU{wait}" if missing else "This PC can run it on its CPU"
        return Verdict(True, f"{start}: it needs {amount}.")
    whole = memory.total if memory.limit is None else memory.limit
    advice = f"{gib(whole)} in all: close other programs" if needed <= whole else f"it has {gib(whole)} in all"
    return Verdict(False, f"This PC cannot run it on its CPU today: it needs {amount} ({advice}).")


def decide_with_files(verdict: Verdict, needs: CpuNeeds, memory: MemoryFacts, engine: EngineSettings) -> Verdict:
    """The verdict of a model that does not fit, if experts may stay in its files."""
    try:
        cache = plan_cpu_memory(needs, memory, engine.ram_gib, is_filed=True)
    except ModelError:
        return verdict
    if cache is None:  # it is a conversation that does not fit
        return verdict
    if not engine.mmap:
        return Verdict(False, f"{verdict.sentence} With `--mmap`, which leaves experts in its file, it can.")
    return Verdict(
        True,
        f"This PC can run it on its CPU with experts left in its file: {gib(cache)} of memory are for those that are "
        f"read when they are asked for, of {gib(needs.experts)}.",
    )


def gib(size: float) -> str:
    """Bytes in words: 113 MiB, 63.2 GiB."""
    if size >= 1 << 40:
        return f"{size / 2**40:.2f} TiB"
    if size >= 1 << 30:
        return f"{size / 2**30:.1f} GiB"
    return f"{size / 2**20:.1f} MiB" if size >= 1 << 20 else f"{size / 2**10:.1f} KiB"


def _context_of(text: Mapping[str, Any], asked: int | None) -> int:
    longest = text["max_position_embeddings"]
    if asked is None:
        return min(8192, longest)
    if not 1 <= asked <= longest:
        raise SettingsError(f"--context {asked:,} does not work: this model takes from 1 to {longest:,} tokens")
    return asked


def _layer_kinds(text: Mapping[str, Any]) -> dict[str, int]:
    attention = attention_layers(text)
    name = "indexed attention" if text.get("indexer_n_heads") else "attention"
    kinds = {"delta net": attention.count(False), name: attention.count(True)}
    return {kind: count for kind, count in kinds.items() if count}


def _stored_sizes(shapes: Shapes, source: ModelSource | None, config: Mapping[str, Any]) -> dict[str, int]:
    """Bytes of every tensor as the files store it; without files, as the config says that they would."""
    if source is not None:
        return {name: source.stored_bytes(name) for name in shapes}
    block = read_weight_block(config)
    sizes = {}
    for name, shape in shapes.items():
        if block is not None and is_fp8_matrix(name):
            sizes[name] = math.prod(shape) + 4 * math.prod(scale_shape(shape, block))
        else:
            sizes[name] = math.prod(shape) * 2
    return sizes


def _stored_weights(
    source: ModelSource | None, shapes: Shapes, sizes: Mapping[str, int], config: Mapping[str, Any]
) -> StoredWeights:
    formats: dict[str, int] = {}
    by_part: dict[str, dict[str, int]] = {}
    is_block_fp8 = read_weight_block(config) is not None
    for name, size in sizes.items():
        code = "F8_E4M3" if is_block_fp8 and is_fp8_matrix(name) else "BF16"
        held = source.stored_types(name) if isinstance(source, GgufSource) else {}
        for kind, count in (held or {source.stored_code(name) if source else code: size}).items():
            for sums in (formats, by_part.setdefault(part_of(name).value, {})):
                sums[kind] = sums.get(kind, 0) + count
    notices = source.notices if source else ()
    names = source.names() if source else ()
    unread = [name for name in names if name not in shapes and not is_hash_constant(name)]
    if unread:
        notices += (f"{len(unread):,} tensors are not read by this family, for example {unread[0]}",)
    return StoredWeights(source is not None, sum(sizes.values()), formats, by_part, notices)


def _has_tokenizer(source: ModelSource | None, path: Path) -> bool:
    if isinstance(source, GgufSource):
        return "tokenizer.ggml.tokens" in source.model.metadata
    return (path / "tokenizer.json").is_file()


def _text_facts(source: ModelSource | None, path: Path, config: Any) -> TextFacts:
    load = partial(load_tokenizer, path) if source is None else partial(tokenizer_of, source)
    return read_text_facts(load, config.end_of_text_ids, config.vocabulary_size)


def _has_template(source: ModelSource | None, directory: Path) -> bool:
    if isinstance(source, GgufSource):
        return "tokenizer.chat_template" in source.model.metadata
    if (directory / "chat_template.jinja").is_file() or (directory / "chat_template.json").is_file():
        return True
    tokenizer_config = directory / "tokenizer_config.json"
    try:
        return b'"chat_template"' in tokenizer_config.read_bytes()
    except OSError:
        return False


def report_as_json(report: ModelReport) -> dict[str, Any]:
    """The report as plain values for `--json`; sizes in bytes."""
    count = report.parameters
    hardware = report.hardware
    return {
        "path": report.path,
        "family": report.family,
        "config": dict(report.config),
        "layers": report.layers,
        "parameters": {
            "total": count.total,
            "active_per_token": {"routed": count.active_routed, "dense": count.active_dense, "total": count.active},
            **{part.name.lower(): size for part, size in count.by_part.items()},
        },
        "stored": vars(report.stored),
        "packed": [{**vars(each), "grows": each.grows} for each in packed_formats(report)],
        "has_tokenizer": report.has_tokenizer,
        "has_chat_template": report.has_template,
        "text": vars(report.text),
        "dtype": report.dtype,
        "context": report.context,
        "state": {
            "fixed_bytes": report.state_fixed_bytes,
            "bytes_per_token": report.state_bytes_per_token,
            "bytes_at_context": report.today.ram["state"],
        },
        "needs": {"everything_in_ram": vars(report.today), "dense_on_card": vars(report.with_card)},
        "pc": {
            "cpu": vars(hardware.cpu),
            "memory": {**vars(hardware.memory), "usable": hardware.memory.usable},
            "gpus": [vars(gpu) for gpu in hardware.gpus],
            "disk_free": report.disk_free,
        },
        "can_run": report.verdict.can_run,
        "verdict": report.verdict.sentence,
    }


def packed_formats(report: ModelReport) -> list[Packed]:
    """What the stored formats take in memory; formats of plain floats, which stay as they are, are left out."""
    known = [packed_format(name) for name in report.stored.formats if name not in ("F32", "F16", "BF16")]
    return [each for each in known if each is not None]


def parts_in_order(report: ModelReport) -> list[tuple[Part, int]]:
    """The parts that the model has, with their parameters."""
    return [(part, size) for part, size in report.parameters.by_part.items() if size]
