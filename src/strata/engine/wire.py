"""Messages on a socket: four bytes of length, then a pickle that can hold nothing but border values.

Knows bytes and the classes of `messages.py`; no process. Pickle because it is C code on both ends: a window's tokens
take about 0.01 ms there and back. It is safe here: the socket is made by `socketpair` and inherited, so nobody else can
write to it, and the reader knows only the classes below, whatever the bytes say: none of them acts when it is made.
"""

import io
import pickle
import socket
import struct
from typing import Any

from strata.engine import messages
from strata.engine.request import TokenRequest
from strata.sampling.draw import Draw, TokenLogprob
from strata.sampling.grammar_spec import GrammarKind, GrammarSpec
from strata.sampling.options import SamplingOptions
from strata.settings import EngineSettings
from strata.types import FinishReason, Usage

_LENGTH = struct.Struct("<I")
_RECEIVE_BYTES = 1 << 18

_VALUES: tuple[type, ...] = (
    *messages.ALL,
    messages.TokenizerFiles,
    messages.ModelFacts,
    messages.SlotView,
    TokenRequest,
    SamplingOptions,
    GrammarSpec,
    GrammarKind,
    Draw,
    TokenLogprob,
    Usage,
    FinishReason,
    EngineSettings,
)
_KNOWN = {(kind.__module__, kind.__qualname__): kind for kind in _VALUES}


class WireError(Exception):
    """Bytes that are no message: the other end is not what it should be."""


class _BorderUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        kind = _KNOWN.get((module, name))
        if kind is None:
            raise WireError(f"{module}.{name} is no value of the border")
        return kind


def encode(message: Any) -> bytes:
    """A message with its length in front."""
    content = pickle.dumps(message, protocol=5)
    return _LENGTH.pack(len(content)) + content


class Decoder:
    """Collects bytes and gives the messages that are complete."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    def feed(self, received: bytes) -> None:
        """Bytes as they came, cut anywhere."""
        self._bytes += received

    def next(self) -> Any | None:
        """The next complete message, or None. Raises WireError for bytes that are none."""
        if len(self._bytes) < _LENGTH.size:
            return None
        stop = _LENGTH.size + _LENGTH.unpack_from(self._bytes)[0]
        if len(self._bytes) < stop:
            return None
        content = bytes(self._bytes[_LENGTH.size : stop])
        del self._bytes[:stop]
        try:
            return _BorderUnpickler(io.BytesIO(content)).load()
        except (pickle.UnpicklingError, EOFError, ValueError, TypeError, AttributeError, IndexError) as failure:
            raise WireError(f"these bytes are no message: {failure}") from failure


def receive_some(connection: socket.socket, *, wait: bool) -> bytes | None:
    """Bytes that have come: None if there are none yet (only without `wait`), b"" if the other end is gone."""
    try:
        return connection.recv(_RECEIVE_BYTES, 0 if wait else socket.MSG_DONTWAIT)
    except BlockingIOError:
        return None
    except OSError:
        return b""
