"""The rows of the table that `make conformance` prints."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    """One promise, what it asks and what came out."""

    name: str
    target: str
    result: str
    is_kept: bool


def as_markdown(rows: Sequence[Row]) -> str:
    """The table; the last column says whether a promise is kept."""
    lines = ["| | asked | found | kept |", "|---|---|---|---|"]
    lines += [f"| {row.name} | {row.target} | {row.result} | {'yes' if row.is_kept else '**no**'} |" for row in rows]
    return "\n".join(lines)
