"""The read modes that are compared, by the names that a user gives them. Knows settings; runs nothing."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from strata.errors import SettingsError
from strata.scheduler.due import Limits
from strata.scheduler.read_modes import ReadMode
from strata.settings import EngineSettings

PIECE_MAX_MS = 400.0  # of windows behind a piece, as in what was published


@dataclass(frozen=True)
class JoinMode:
    """How prompts are read."""

    mode: ReadMode
    piece: int | None = None  # tokens, in the mode `pieces`

    @property
    def name(self) -> str:
        """As it is given: whole, pieces:32768, layers."""
        return self.mode.value if self.piece is None else f"{self.mode.value}:{self.piece}"

    def limits(self, settings: EngineSettings, machine: "Served") -> Limits:
        """Of a scheduler that reads so, and takes everything else from the settings."""
        own = replace(
            settings,
            read_mode=self.mode.value,
            piped_read_piece=self.piece,
            piped_decode_max_ms=PIECE_MAX_MS if settings.piped_decode_max_ms is None else settings.piped_decode_max_ms,
        )
        return Limits.of(own, machine.slots, machine.chunk_rows, machine.is_piped, machine.groups)


@dataclass(frozen=True)
class Served:
    """What a scheduler must know of the engine below it."""

    slots: int
    chunk_rows: int
    groups: int = 1
    is_piped: bool = False  # several stages work on several groups


def parse_modes(given: str) -> tuple[JoinMode, ...]:
    """Of a list with commas. Raises SettingsError for what is no mode."""
    return tuple(_parse(part.strip(), given) for part in given.split(","))


def _parse(part: str, given: str) -> JoinMode:
    name, _, tokens = part.partition(":")
    if name == ReadMode.PIECES.value:
        if not tokens.isdecimal() or int(tokens) < 1:
            raise SettingsError(f"--modes {given}: {part} does not work; pieces:32768 does, with the tokens of a piece")
        return JoinMode(ReadMode.PIECES, int(tokens))
    if tokens or name not in (ReadMode.WHOLE.value, ReadMode.LAYERS.value):
        raise SettingsError(f"--modes {given}: {part or 'nothing'} does not work; whole, pieces:N and layers do")
    return JoinMode(ReadMode(name))


def parse_names(given: str, known: Sequence[str], flag: str) -> tuple[str, ...]:
    """Of a list with commas, each once. Raises SettingsError for what is not known."""
    found = tuple(dict.fromkeys(part.strip() for part in given.split(",")))
    if wrong := [name for name in found if name not in known]:
        raise SettingsError(f"{flag} {given}: {wrong[0] or 'nothing'} does not work; {', '.join(known)} do")
    return found
