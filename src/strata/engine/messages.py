"""What the server's process and the engine's say to each other: small frozen values, in both directions.

Knows no socket, no tensor and no text; the values of a request are those of `request.py`. The engine's process is told
what to load, says when it is ready, and then answers requests by their number until it is told to stop:

    to the engine      Load, then any of Submit, Cancel, Stop
    from the engine    Loading.., then Ready or LoadFailed; per request ReadProgress.., PromptRead, Drawn.., Ended;
                       Statistics about every second while it works and once when it goes idle;
                       Pulse every second, whatever it does; Crashed before it ends by a mistake of its own
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, get_args

from strata.engine.request import TokenRequest
from strata.sampling.draw import Draw
from strata.settings import EngineSettings
from strata.types import FinishReason, Usage


@dataclass(frozen=True)
class Load:
    """The first message: what to run, under which settings."""

    model: str | None  # directory or GGUF file; None: the model that ships with strata
    settings: EngineSettings


@dataclass(frozen=True)
class Submit:
    """Serve a request; every event about it carries its number."""

    request_id: int
    request: TokenRequest


@dataclass(frozen=True)
class Cancel:
    """End a request, in whatever phase it is; it is answered by its `Ended`.

    One that has just ended by itself is not answered again, but its conversation is cut at `keep_tokens`. Numbers that
    are unknown are ignored.
    """

    request_id: int
    keep_tokens: int | None = None  # tokens of the reply that were handed out; later ones are not part of the text


@dataclass(frozen=True)
class Stop:
    """Let go of everything and end the process."""


ToEngine = Load | Submit | Cancel | Stop


@dataclass(frozen=True)
class Loading:
    """How far loading has come; units are the stage's own."""

    stage: str
    done: int
    total: int


@dataclass(frozen=True)
class TokenizerFiles:
    """The arguments of a `text.tokenizer.Tokenizer`, so that the server needs no file of the model."""

    tokenizer_json: Mapping[str, Any]
    tokenizer_config: Mapping[str, Any]
    end_of_text_ids: tuple[int, ...]
    chat_template: str | None
    where: str


@dataclass(frozen=True)
class ModelFacts:
    """What others may know of a loaded model."""

    name: str  # of its directory or file
    family: str  # model_type
    context: int  # most tokens of prompt and reply
    trained_context: int
    vocabulary_size: int  # width of the logits
    parameters: int
    weight_bytes: int
    slots: int  # conversations that run at once
    slot_bytes: int  # what a full one takes
    end_of_text_ids: frozenset[int]
    tokenizer: TokenizerFiles
    notices: tuple[str, ...]  # sentences for the user about what was left out
    recommended_sampling: Mapping[str, float] = field(default_factory=dict)  # options by name, as its files say
    kv_kind: str = ""  # how keys and values are kept
    slot_costs: str = ""  # what slots cost by place, and how many fit; empty where all lie in main memory


@dataclass(frozen=True)
class Ready:
    """Everything is compiled and loaded: requests are served from now on."""

    facts: ModelFacts
    load_seconds: float


@dataclass(frozen=True)
class LoadFailed:
    """The model cannot be served; the process ends."""

    error: str  # one sentence
    is_users_mistake: bool  # a wrong path or setting: starting again would fail again


@dataclass(frozen=True)
class ReadProgress:
    """Tokens of a prompt that are part of its slot's state."""

    request_id: int
    done: int
    total: int
    cached: int  # of `done`, those that a kept conversation had already


@dataclass(frozen=True)
class PromptRead:
    """Log-probabilities of a prompt's tokens, if they were asked for; the first token has none."""

    request_id: int
    logprobs: tuple[Draw, ...]


@dataclass(frozen=True)
class Drawn:
    """The tokens of one decode window, in order."""

    request_id: int
    draws: tuple[Draw, ...]
    usage: Usage


@dataclass(frozen=True)
class Ended:
    """The last event of every request."""

    request_id: int
    reason: FinishReason
    usage: Usage
    error: str | None = None  # one sentence if the reason is ERROR
    is_callers_mistake: bool = False  # the request could not be served as asked: HTTP 400, not 500
    notices: tuple[str, ...] = ()  # what was relaxed or dropped: a schema's options, a kept state


@dataclass(frozen=True)
class SlotView:
    """One slot as the monitor shows it."""

    slot: int
    phase: str  # idle, waiting, reading, decoding
    request_id: int | None
    prompt_tokens: int
    read_tokens: int
    reply_tokens: int
    kept_tokens: int  # of a finished conversation
    longest_gap_ms: float  # between two windows of the running reply


@dataclass(frozen=True)
class Statistics:
    """Counters since the process started, and the state now."""

    seconds: float  # since then
    busy_seconds: float
    prompt_tokens: int  # read
    cached_tokens: int  # not read, because a slot had them
    reply_tokens: int
    windows: int
    drafted_tokens: int
    accepted_drafts: int
    waiting: int  # requests without a slot
    slots: tuple[SlotView, ...]
    # By where they ran: vram, pcie, cpu. Of what: rows of experts, or, where they run in several places, distinct
    # experts of each layer of each window; of prompts in chunks then prompt_vram, those with a seat, and prompt_pcie,
    # those sent.
    experts: Mapping[str, int] = field(default_factory=dict)
    experts_are_rows: bool = True
    experts_read: Mapping[str, int] = field(default_factory=dict)  # from files: experts, bytes, ns; empty: none are
    memory: Mapping[str, int] = field(default_factory=dict)  # bytes by use: weights, states, ...
    # Of conversations: kept now; dropped for want of room; hits: prompts that went on from one, behind so many rows.
    checkpoints: Mapping[str, int] = field(default_factory=dict)
    # Conversations that gave up their slots and lie in main memory: kept now, in so many bytes of the room for them;
    # parked so far; dropped since; returned: prompts that went on with one, behind so many rows; empty: none has room.
    parked: Mapping[str, int] = field(default_factory=dict)
    read_runs: int = 0  # parts of prompts that were read with no window in between
    give_ways: int = 0  # times that a prompt's read let a shorter one pass
    # Blocks of keys and values in main memory: asked for by rows of windows, and brought to the card; empty: none lie
    # there.
    pages: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Pulse:
    """A sign of life from a thread of its own. `engine.client` takes it out of the stream and judges by it."""

    # For how long the step under way has been running, or since the last expert came from a file; None: there is none.
    step_seconds: float | None
    waiting_for: str | None = None  # what a step that takes long waits for beside the device, in a sentence, if known


@dataclass(frozen=True)
class Crashed:
    """The process ends by a mistake in it; every request under way is lost. `engine.client` raises EngineLost."""

    error: str  # one sentence


FromEngine = Loading | Ready | LoadFailed | ReadProgress | PromptRead | Drawn | Ended | Statistics | Pulse | Crashed

ALL: tuple[type, ...] = (*get_args(ToEngine), *get_args(FromEngine))  # every message
