"""How a prompt is read beside running replies: in whole runs, in pieces, or layer by layer. Pure; rows and seconds.

A *run* is a part of a prompt that is read with no window in between:

    whole    a chunk; where groups of slots share several stages, all of the prompt
    pieces   some chunks, also when nothing decodes; on several stages its end drains them
    layers   windows come between any two steps of it, so it is as long as the engine reads in one call

Behind a run the running replies get windows for a share of its time. Knows no slot and no engine.
"""

from dataclasses import dataclass
from enum import StrEnum

from strata.scheduler.places import line_before
from strata.settings import EngineSettings

MOST_CHUNKS = 32  # of a piece
USUAL_SHARE = 0.5  # seconds of windows for each second of reading, in the modes `whole` and `pieces`
MOST_GIVING_WAY = 2  # of one request


class ReadMode(StrEnum):
    """Where windows of running replies may come in."""

    WHOLE = "whole"
    PIECES = "pieces"
    LAYERS = "layers"


@dataclass(frozen=True)
class ReadRule:
    """What the user chose. Seconds; `least_windows` to `most_windows` bound what follows a piece."""

    mode: ReadMode = ReadMode.LAYERS
    piece_rows: int = 0  # in the mode `pieces`, whole chunks; 0: prompts are not cut
    is_piped: bool = False  # several stages work on several groups
    decode_share: float | None = None  # None: what is usual in the mode
    least_windows: float = 0.0
    most_windows: float = float("inf")

    @classmethod
    def of(cls, settings: EngineSettings, chunk_rows: int, is_piped: bool) -> "ReadRule":
        """As the settings say: `pieces` if a piece is set and no mode was said."""
        usual = ReadMode.LAYERS if settings.piped_read_piece is None else ReadMode.PIECES
        most = settings.piped_decode_max_ms
        return cls(
            mode=usual if settings.read_mode is None else ReadMode(settings.read_mode),
            piece_rows=piece_rows(settings.piped_read_piece or 0, chunk_rows),
            is_piped=is_piped,
            decode_share=settings.decode_share,
            least_windows=(settings.piped_decode_min_ms or 0.0) / 1000,
            most_windows=float("inf") if most is None else most / 1000,
        )

    @property
    def is_uncut(self) -> bool:
        """Whether a prompt is one run: no window beside it, and nobody passes it."""
        return self.mode is ReadMode.WHOLE and self.is_piped

    @property
    def share(self) -> float:
        """Seconds of windows for each second of reading."""
        if self.is_uncut:
            return 0.0
        if self.decode_share is not None:
            return self.decode_share
        return 0.0 if self.mode is ReadMode.LAYERS else USUAL_SHARE

    @property
    def step_share(self) -> float:
        """The share that is owed from step to step; in the other modes it is owed behind a run."""
        return self.share if self.mode is ReadMode.LAYERS else 0.0


def piece_rows(asked: int, chunk_rows: int) -> int:
    """Rows of a piece of `asked` tokens: rounded up to whole chunks, 1 to 32 of them.

    0 if no piece was asked for, or if prompts are not read in chunks: then a prompt is one run.
    """
    if asked < 1 or chunk_rows < 1:
        return 0
    return min(-(-asked // chunk_rows), MOST_CHUNKS) * chunk_rows


def run_end(rule: ReadRule, position: int, total: int, chunk_rows: int, reads_runs: bool = False) -> int:
    """Up to which row of a prompt of `total` the run goes that begins at `position`; it ends on the grid or with it.

    reads_runs: the engine reads many chunks in one call, with windows between its steps in the mode `layers`.
    """
    if rule.is_uncut or (rule.mode is ReadMode.LAYERS and reads_runs):
        return total
    if rule.mode is not ReadMode.PIECES:
        return chunk_end(position, total, chunk_rows)
    return chunk_end(position, total, rule.piece_rows) if rule.piece_rows else total


def chunk_end(position: int, total: int, rows: int) -> int:
    """The end of the rows that begin at `position`, at most so many."""
    return total if position + rows >= total else line_before(position + rows)


def windows_owed(rule: ReadRule, run_seconds: float) -> float:
    """Seconds of windows behind a run that took so long and was not its prompt's last one."""
    owed = rule.share * run_seconds
    if rule.mode is ReadMode.PIECES:
        owed = min(max(owed, rule.least_windows), rule.most_windows)
    return owed


def lead_in(rule: ReadRule, last_run: float | None) -> float:
    """Seconds of windows in front of a read.

    last_run: seconds of the last run of the read that ended before it with no window since; None: there is none.
    """
    return windows_owed(rule, last_run) if rule.mode is ReadMode.PIECES and last_run is not None else 0.0


def gives_way(rule: ReadRule, left: int, waiting: int, times: int, is_in_run: bool) -> bool:
    """Whether a read with `left` rows to go lets a prompt of `waiting` rows pass, having done so `times` times.

    is_in_run: it stands inside a run, between two steps of the engine.
    """
    may_stop = not rule.is_uncut and (rule.mode is ReadMode.LAYERS or not is_in_run)
    return may_stop and times < MOST_GIVING_WAY and 2 * waiting < left
