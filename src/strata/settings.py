"""Every setting, its default and its limits; resolved once: flag, then environment, then file, then default.

The only file that reads the environment. Knows no part that uses a setting.
"""

import dataclasses
import difflib
import os
import tomllib
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from strata.errors import SettingsError
from strata.limits import Limits, convert

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
        "longest pause of a running reply in milliseconds while others' prompts are read; 64 rows are read at least",
        minimum=1,
    )
    decode_share: float | None = setting(
        None,
        "seconds of decoding that running replies get for each second of reading; not given: by max_gap_ms alone",
        above=0,
        maximum=100,
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
    verify_profile: bool = setting(
        False, "time every step of every layer on a card, without graphs, and print a table of them at the end"
    )

    @property
    def cpu_chunk_rows(self) -> int:
        """Rows that pass a model on the CPU together."""
        return self.chunk_rows or CPU_CHUNK_ROWS


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
    in_file = _read_file(file, environment)
    known = {name for section in SECTIONS.values() for name in _fields(section)}
    for name in flags:
        if name not in known:
            raise SettingsError(f"unknown setting {name}{_nearest(name, known)}")
    sections = {}
    said: set[str] = set()
    for section_name, section in SECTIONS.items():
        values = {}
        for name, (kind, limits) in _fields(section).items():
            variable = PREFIX + name.upper()
            if name in flags:
                values[name] = check(name, flags[name], kind, limits, f"--{name.replace('_', '-')}")
            elif environment.get(variable, "") != "" or (name in _MAY_BE_EMPTY and variable in environment):
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


def named_cards() -> str | None:
    """Which cards the environment shows to CUDA (CUDA_VISIBLE_DEVICES), None if it leaves that open."""
    return os.environ.get("CUDA_VISIBLE_DEVICES")


def is_debugging() -> bool:
    """Whether STRATA_DEBUG asks for tracebacks."""
    return os.environ.get(DEBUG_VARIABLE, "") not in ("", "0")


def check(name: str, value: Any, kind: type, limits: Limits, origin: str) -> Any:
    """A value turned into the setting's type and held against its limits."""
    converted = convert(value, kind)
    if converted is None or not limits.allow(converted):
        raise SettingsError(f"setting {name}: {value!r} (from {origin}) does not work; {limits.in_words(kind)} does")
    return converted


def as_markdown() -> str:
    """docs/settings.md: one table a section. A test holds the file against this."""
    lines = [
        "# Settings",
        "",
        "Written by `make settings` from `src/strata/settings.py`; edit that file, not this one.",
        "",
        "A flag wins over the environment, the environment over the settings file, the file over the default.",
        f"The settings file is TOML with one table a section; `{CONFIG_VARIABLE}` names it, otherwise",
        "`strata/settings.toml` in the user's configuration folder is read if it is there.",
        f"`{DEBUG_VARIABLE}=1` shows the traceback of an error.",
    ]
    for section_name, section in SECTIONS.items():
        lines += ["", f"## [{section_name}]", "", (section.__doc__ or "").splitlines()[0], ""]
        lines += ["| setting | default | takes | what it does | flag, variable |", "|---|---|---|---|---|"]
        for field in fields(section):
            kind, limits = _fields(section)[field.name]
            default = "" if field.default is None else f"`{field.default}`"
            flag = ("no-" if field.default is True else "") + field.name.replace("_", "-")
            names = f"`--{flag}`, `{PREFIX}{field.name.upper()}`"
            lines.append(f"| `{field.name}` | {default} | {limits.in_words(kind)} | {limits.help} | {names} |")
    return "\n".join(lines) + "\n"


def describe(section: type) -> dict[str, tuple[type, Limits]]:
    """A section's settings by name: their type without None, and their limits. What flags are made from."""
    return dict(_fields(section))


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


def _read_file(file: Path | None, environment: Mapping[str, str]) -> dict[str, Any]:
    asked = file or (Path(environment[CONFIG_VARIABLE]) if environment.get(CONFIG_VARIABLE) else None)
    base = environment.get("XDG_CONFIG_HOME") or (environment["HOME"] + "/.config" if "HOME" in environment else "")
    path = asked or (Path(base) / "strata" / "settings.toml" if base else None)
    if path is None:
        return {}
    try:
        if asked is None and not path.is_file():
            return {}
        content = tomllib.loads(path.read_text("utf-8"))
    except OSError as reason:
        raise SettingsError(f"the settings file {path} cannot be read: {reason.strerror}") from reason
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as reason:
        raise SettingsError(f"the settings file {path} is not TOML: {reason}") from reason
    for section_name, values in content.items():
        if section_name not in SECTIONS or not isinstance(values, dict):
            raise SettingsError(f"{path}: unknown section {section_name}; there are {', '.join(SECTIONS)}")
        for name in values:
            names = set(_fields(SECTIONS[section_name]))
            if name not in names:
                raise SettingsError(f"{path}: unknown setting {name} in [{section_name}]{_nearest(name, names)}")
    return content


def _nearest(name: str, known: set[str]) -> str:
    close = difflib.get_close_matches(name, sorted(known), n=1)
    return f"; did you mean {close[0]}?" if close else f"; there are {', '.join(sorted(known))}"
