"""Every setting, its default and its limits; resolved once: flag, then environment, then file, then default.

The only file that reads the environment. Knows no part that uses a setting.
"""

import dataclasses
import os
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from strata.errors import SettingsError
from strata.limits import Limits, convert
from strata.settings_sources import file_of, find_variable, nearest, read_settings_file

PREFIX = "STRATA_"
CONFIG_VARIABLE = PREFIX + "CONFIG"
DEBUG_VARIABLE = PREFIX + "DEBUG"
CPU_CHUNK_ROWS = 512


def setting(default: Any, help_line: str, **limits: Any) -> Any:
    """A dataclass field that carries its limits; `default` lives nowhere else."""
    return dataclasses.field(default=default, metadata={"limits": Limits(help_line, **limits)})


@dataclass(frozen=True)
class EngineSettings:
    """How the model is loaded and run; fixed from load to close."""

    device: str = setting(
        "auto",
        "what computes: the CPU, a GPU through CUDA, or the GPU if there is one that the model fits on (auto)",
        choices=("auto", "cpu", "cuda"),
    )
    devices: str | None = setting(
        None,
        "devices of the model's stages in order, such as cuda:0,cuda:1 (cpu is a slow one); not given: one, or every "
        "card if layer_split is set",
    )
    layer_split: str | None = setting(
        None,
        "first layers of all stages but the first, such as 13,30; auto tries every split and takes the one whose cards "
        "hold most of the experts; not given: auto if devices are several",
    )
    threads: int | None = setting(
        None,
        "CPU threads; not given: one for each core that may be used, beside a card one less, a single one for a narrow "
        "model",
        minimum=1,
        maximum=1024,
    )
    dtype: str = setting(
        "float32", "number format of weights and arithmetic on the CPU", choices=("float32", "float64")
    )
    cpu_path: str = setting(
        "native",
        "what computes on the CPU: the C++ library (float32, if it was built) or torch",
        choices=("native", "torch"),
    )
    gpu_path: str = setting(
        "triton", "what computes on a GPU: our kernels, or torch, their slow twin", choices=("triton", "torch")
    )
    dependent_launches: bool = setting(
        True, "start a GPU's kernels while the one before still runs; needs compute capability 9.0"
    )
    window_sampling: str = setting(
        "auto",
        "where tokens of a GPU's windows are chosen: there, as far as a reply's options allow it (auto), or by the CPU",
        choices=("auto", "host"),
    )
    context: int | None = setting(
        None,
        "most tokens of prompt and reply together; not given: what the model was made for, on a card as far as it fits "
        "there and at most 32,768 where it does not hold all experts",
        minimum=1,
    )
    kv_kind: str = setting(
        "bf16",
        "how keys and values of a conversation are kept: bf16 rounds them once; int8 takes half of its bytes, k8v4 (8 "
        "bits a key, 4 a value) four tenths, q4 a quarter, and each changes answers slightly; f32 keeps all and takes "
        "twice its bytes",
        choices=("bf16", "int8", "k8v4", "q4", "f32"),
    )
    kv_resident: int = setting(
        0,
        "cells of a conversation, one a token, whose keys and values a card keeps while main memory holds all; for "
        "models with an indexer; 0: a card holds all",
        minimum=0,
    )
    chunk_rows: int | None = setting(
        None,
        "rows of a prompt that pass the model together; not given: 512, on a card as many as have room in a part of "
        "its memory, up to 8,192",
        minimum=64,
        maximum=8192,
        multiple_of=64,
    )
    gpu_reads: str = setting(
        "chunks",
        "how a card reads prompts: in chunks that pass it layer by layer, or as windows of 32 rows, which is slow and "
        "gives a row the bits that decoding it gives",
        choices=("chunks", "windows"),
    )
    read_step: str = setting(
        "layer",
        "after how much of a chunk a card may run a window of replies: a layer, or the experts of one tile of it",
        choices=("layer", "tile"),
    )
    drafts: int = setting(0, "tokens drafted ahead in each window by the model's own draft layer", minimum=0, maximum=8)
    slots: int | None = setting(
        None, "conversations that run at once; not given: as many as fit in memory, up to 4", minimum=1, maximum=32
    )
    max_gap_ms: float = setting(
        100.0,
        "longest pause of a running reply in milliseconds while others' prompts are read, in the read mode layers; a "
        "layer is read at least",
        minimum=1,
    )
    read_mode: str | None = setting(
        None,
        "where running replies get windows while a prompt is read: between its chunks (whole; with groups on several "
        "stages behind all of it), behind pieces of some chunks (pieces), or between any two layers (layers); not "
        "given: pieces if piped_read_piece is set, otherwise layers",
        choices=("whole", "pieces", "layers"),
    )
    piped_read_piece: int | None = setting(
        None, "tokens of a piece in the read mode pieces, rounded up to 1 to 32 whole chunks", minimum=1
    )
    decode_share: float | None = setting(
        None,
        "seconds of decoding that running replies get for each second of reading; not given: 0.5 in the read modes "
        "whole and pieces, in layers by max_gap_ms alone",
        minimum=0,
        maximum=100,
        variables=("STRATA_BATCH_DECODE_SHARE",),
    )
    piped_decode_min_ms: float | None = setting(
        None, "least milliseconds of decoding behind a piece; not given: no bound", minimum=0
    )
    piped_decode_max_ms: float | None = setting(
        None, "most milliseconds of decoding behind a piece; not given: no bound", minimum=0
    )
    groups: int | str = setting(
        "auto",
        "groups of slots whose windows run one beside the other, each on another stage or while the CPU computes "
        "experts of the others; auto: as many as there is work for",
        minimum=1,
        maximum=32,
        words=("auto",),
    )
    turn_state: str = setting(
        "kept",
        "where the next turn of a conversation goes on: behind the reply as it was decoded (kept), or behind what was "
        "read before it, so that the reply is read again and an answer never depends on what was kept (read)",
        choices=("kept", "read"),
    )
    checkpoint_gib: float | None = setting(
        None,
        "GiB of main memory for checkpoints of conversations, behind which other prompts go on, beside the last one of "
        "each slot; not given: seven for each slot, but at most a 32nd of what may be used",
        minimum=0,
        maximum=4096,
    )
    parked_gib: float | None = setting(
        None,
        "GiB of main memory for conversations whose slots others get, which go on from there instead of being read "
        "again; 0: none; not given: a part of what is left, up to 8",
        minimum=0,
        maximum=4096,
    )
    quantize: str = setting(
        "none",
        "pack matrices that files hold in bf16 or FP8 to 4.5 (code4) or 8.5 (code8) bits a weight while they are read",
        choices=("none", "code4", "code8"),
    )
    vram_gib: float | None = setting(
        None, "most GiB of a card's memory to use; not given: what is free, less a reserve", above=0, maximum=4096
    )
    ram_gib: float | None = setting(
        None, "most GiB of main memory to use beside a card; not given: what is free", above=0, maximum=65536
    )
    cache_gib: float | None = setting(
        None,
        "GiB of a card's memory for experts, the others stay in main memory; more than fits beside everything else is "
        "refused; not given: what is left",
        minimum=0,
        maximum=4096,
    )
    resident: bool = setting(
        False, "keep an expert in main memory or on the card and never in both, for a PC that is short of main memory"
    )
    mmap: bool = setting(
        False,
        "leave experts that main memory has no room for in the model's GGUF file and read them when they are asked for",
    )
    ngram_table: str = setting(
        "auto",
        "where an n-gram table lies that is too large for a card: in main memory (memory), or in the model's files, "
        "whence windows ask for single rows (file); auto: in main memory if that has room for it beside the experts",
        choices=("auto", "memory", "file"),
    )
    pcie_share: float | None = setting(
        None,
        "share of the experts missing on the card that it reads in place from main memory, the CPU computes the "
        "others; not given: as measured",
        minimum=0,
        maximum=1,
    )
    expert_wait: str = setting(
        "spin",
        "how a card waits for experts that the CPU computes: by a kernel that polls (spin), or without one (stream), "
        "which takes a little longer and lets the card rest",
        choices=("spin", "stream"),
    )
    expert_swaps: bool = setting(True, "let the experts on the card follow what a conversation asks for")
    expert_profile: str | None = setting(
        None,
        "file of which experts were asked for, read at the start and written at the end; not given: one for each model "
        "in strata/profiles in the user's cache",
    )
    kernel_cache: str | None = setting(
        None, "folder of kernels that were compiled for this PC's card; not given: strata/kernels in the user's cache"
    )
    stages: bool = setting(
        False, "of the processes that torchrun started compute one stage of the model each; the first answers clients"
    )
    verify_profile: bool = setting(
        False, "time every step of every layer on a card, without graphs, and print a table of them at the end"
    )

    def __post_init__(self) -> None:
        """Refuse settings that do not go together. Raises SettingsError."""
        least, most = self.piped_decode_min_ms, self.piped_decode_max_ms
        if least is not None and most is not None and least > most:
            raise SettingsError(
                f"piped_decode_min_ms is {least:g} and piped_decode_max_ms {most:g}: the least must not be above the "
                "most"
            )
        if self.read_mode == "pieces" and self.piped_read_piece is None:
            raise SettingsError(
                "read_mode is pieces and piped_read_piece is not set: give it the tokens of a piece, such as 16384"
            )
        if self.slots is not None:
            self.groups_of(self.slots, usual=1)

    @property
    def cpu_chunk_rows(self) -> int:
        """Rows that pass a model on the CPU together."""
        return self.chunk_rows or CPU_CHUNK_ROWS

    def groups_of(self, slots: int, usual: int) -> int:
        """Groups of so many slots; where nobody said, `usual` of them or as many as there are slots.

        With `kv_resident` there is one. Raises SettingsError if that does not do, or if there are more than slots.
        """
        if isinstance(self.groups, str):
            return 1 if self.kv_resident else min(usual, slots)
        if self.groups > 1 and self.kv_resident:
            raise SettingsError(
                f"groups is {self.groups} and kv_resident {self.kv_resident:,}: windows of a group would bring blocks "
                "to the card in place of those that another group is reading, so give 1 group or kv_resident 0"
            )
        if self.groups > slots:
            raise SettingsError(
                f"groups is {self.groups} and there are {slots} slots: a group needs a slot of its own, so give at "
                f"most {slots} groups or more slots"
            )
        return self.groups


@dataclass(frozen=True)
class GenerationSettings:
    """What a command's request gets unless it says otherwise; a Python caller's options stand for themselves."""

    max_tokens: int | None = setting(512, "most tokens of a reply", minimum=1)
    temperature: float = setting(0.0, "0: always the likeliest token; 1: as the model says", minimum=0, maximum=100)
    top_k: int = setting(0, "draw among the k likeliest tokens; 0: all", minimum=0)
    top_p: float = setting(1.0, "draw among the fewest tokens that reach this probability", above=0, maximum=1)
    min_p: float = setting(
        0.0, "draw among tokens with at least this share of the largest probability", minimum=0, maximum=1
    )
    repetition_penalty: float = setting(
        1.0, "divides the logits of tokens that stand in prompt or reply; 1: none", minimum=0.01, maximum=100
    )
    presence_penalty: float = setting(
        0.0, "taken once from the logits of tokens that stand in the reply", minimum=-100, maximum=100
    )
    frequency_penalty: float = setting(
        0.0, "taken from a token's logit for each time that it stands in the reply", minimum=-100, maximum=100
    )
    seed: int | None = setting(
        None, "the same seed gives the same draws; not given: a fresh one", minimum=0, maximum=2**63 - 1
    )


@dataclass(frozen=True)
class ServerSettings:
    """How `strata serve` listens, whom it lets in and how long it waits."""

    host: str = setting("127.0.0.1", "address to listen on; one that others can reach needs an API key")
    port: int = setting(8080, "port to listen on; 0: any free one", minimum=0, maximum=65535)
    api_key: str | None = setting(None, "keys that clients must send, separated by commas; not given: none")
    api_key_file: str | None = setting(None, "path of a file of more keys, one a line")
    allow_host: str | None = setting(
        None, "names that a Host header may carry besides addresses and localhost, separated by commas"
    )
    cors_origin: str | None = setting(
        None, "origins of pages that may call from a browser, separated by commas, such as https://example.org"
    )
    tool_dialect: str = setting(
        "auto",
        "how the model writes calls of tools: as its chat template teaches (auto), not at all (none), or by name",
        choices=("auto", "none", "qwen-xml", "hermes-json", "llama-json"),
    )
    served_name: str | None = setting(None, "the model's name for clients; not given: of its directory or file")
    max_body_mib: int = setting(32, "largest body of a request in MiB", minimum=1, maximum=4096)
    max_waiting: int = setting(512, "most requests that wait for a slot; more are told to come back", minimum=0)
    ping_seconds: float = setting(5.0, "silence after which a stream sends a sign of life", minimum=0.1, maximum=60)
    drain_seconds: float = setting(30.0, "time that running replies have when the server is told to stop", minimum=0)


@dataclass(frozen=True)
class Settings:
    """All settings by section."""

    engine: EngineSettings = EngineSettings()
    generation: GenerationSettings = GenerationSettings()
    server: ServerSettings = ServerSettings()
    said: frozenset[str] = frozenset()  # names of the settings that are not defaults, whatever their value


# An empty variable is one that is not set, but for these: a key that was meant and is missing must be noticed.
_MAY_BE_EMPTY = frozenset(("api_key",))
SECTIONS: dict[str, type] = {"engine": EngineSettings, "generation": GenerationSettings, "server": ServerSettings}


def resolve(
    flags: Mapping[str, Any] | None = None,
    *,
    environment: Mapping[str, str] | None = None,
    file: Path | None = None,
) -> Settings:
    """The settings in force. `flags` holds what the caller said, None meaning "not said".

    `file` overrides the environment's STRATA_CONFIG and the user's own settings file. Raises SettingsError naming
    the setting, its value, where it came from and what would work.
    """
    environment = os.environ if environment is None else environment
    flags = {name: value for name, value in (flags or {}).items() if value is not None}
    names_of = {section_name: set(_fields(section)) for section_name, section in SECTIONS.items()}
    in_file = read_settings_file(*file_of(file, environment.get(CONFIG_VARIABLE), environment), names_of)
    known = {name for names in names_of.values() for name in names}
    for name in flags:
        if name not in known:
            raise SettingsError(f"unknown setting {name}{nearest(name, known)}")
    sections = {}
    said: set[str] = set()
    for section_name, section in SECTIONS.items():
        values = {}
        for name, (kind, limits) in _fields(section).items():
            variable = find_variable(name, variables_of(name, limits), environment, may_be_empty=name in _MAY_BE_EMPTY)
            if name in flags:
                values[name] = check(name, flags[name], kind, limits, f"--{name.replace('_', '-')}")
            elif variable is not None:
                values[name] = check(name, environment[variable], kind, limits, variable)
            elif name in in_file.get(section_name, {}):
                values[name] = check(name, in_file[section_name][name], kind, limits, "the settings file")
        sections[section_name] = section(**values)
        said |= values.keys()
    return Settings(**sections, said=frozenset(said))


def kernel_cache_folder(settings: EngineSettings, environment: Mapping[str, str] | None = None) -> Path:
    """Where compiled kernels are kept; the folder need not exist. Raises SettingsError if a file stands there."""
    if settings.kernel_cache is not None:
        folder = Path(settings.kernel_cache)
        if not settings.kernel_cache or (folder.exists() and not folder.is_dir()):
            raise SettingsError(f"setting kernel_cache: {settings.kernel_cache!r} is no folder; the name of one works")
        return folder
    return _user_cache(environment) / "kernels"


def profiles_folder(environment: Mapping[str, str] | None = None) -> Path:
    """Where profiles of routed experts are kept unless `expert_profile` names a file; the folder need not exist."""
    return _user_cache(environment) / "profiles"


def torchrun_variables() -> Mapping[str, str]:
    """What torchrun tells the processes that it starts, and whatever else the environment has."""
    return os.environ


def named_cards() -> str | None:
    """Which cards the environment shows to CUDA (CUDA_VISIBLE_DEVICES), None if it leaves that open."""
    return os.environ.get("CUDA_VISIBLE_DEVICES")


def is_debugging() -> bool:
    """Whether STRATA_DEBUG asks for tracebacks."""
    return os.environ.get(DEBUG_VARIABLE, "") not in ("", "0")


def check(name: str, value: Any, kind: type, limits: Limits, origin: str) -> Any:
    """A value turned into the setting's type and held against its limits."""
    converted = value if value in limits.words else convert(value, kind)
    if converted is None or not limits.allow(converted):
        raise SettingsError(f"setting {name}: {value!r} (from {origin}) does not work; {limits.in_words(kind)} does")
    return converted


def describe(section: type) -> dict[str, tuple[type, Limits]]:
    """A section's settings by name: their type without None, and their limits. What flags are made from."""
    return dict(_fields(section))


def variables_of(name: str, limits: Limits) -> tuple[str, ...]:
    """The environment's variables for a setting, its own first."""
    return PREFIX + name.upper(), *limits.variables


def _user_cache(environment: Mapping[str, str] | None) -> Path:
    environment = os.environ if environment is None else environment
    base = environment.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "strata"


def _fields(section: type) -> dict[str, tuple[type, Limits]]:
    hints = typing.get_type_hints(section)
    return {field.name: (_without_none(hints[field.name]), field.metadata["limits"]) for field in fields(section)}


def _without_none(hint: Any) -> type:
    if isinstance(hint, types.UnionType):
        return next(kind for kind in typing.get_args(hint) if kind is not types.NoneType)
    return hint
