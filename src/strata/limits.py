"""Which values a setting takes: its limits, in words too, and how what was said becomes a value. Knows no setting."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Limits:
    """Which values a setting takes, and one line about it. `None` always stands for "decided at run time"."""

    help: str
    minimum: float | None = None
    maximum: float | None = None
    above: float | None = None  # excluded lower end
    multiple_of: int | None = None
    choices: tuple[str, ...] = ()
    words: tuple[str, ...] = ()  # taken besides numbers
    variables: tuple[str, ...] = ()  # of the environment, besides the one of the setting's own name

    def in_words(self, kind: type) -> str:
        """What works, for error messages and the docs."""
        if self.choices:
            return "one of " + ", ".join(self.choices)
        if kind is bool:
            return "true or false"
        if kind not in (int, float):
            return "a path" if kind is Path else "text"
        words = "".join(f"{word} or " for word in self.words) + ("a whole number" if kind is int else "a number")
        if self.multiple_of:
            words = f"a multiple of {self.multiple_of}"
        if self.above is not None:
            words += f" above {self.above}"
        if self.minimum is not None and self.maximum is not None:
            return words + f" from {self.minimum} to {self.maximum}"
        if self.minimum is not None:
            words += f" of at least {self.minimum}"
        if self.maximum is not None:
            words += f"{' and' if self.above is not None else ''} of at most {self.maximum}"
        return words

    def allow(self, value: Any) -> bool:
        """Whether a value of the right type lies within the limits."""
        if self.choices:
            return value in self.choices
        if value in self.words:
            return True
        if not isinstance(value, int | float) or isinstance(value, bool):
            return True
        return (
            (self.minimum is None or value >= self.minimum)
            and (self.maximum is None or value <= self.maximum)
            and (self.above is None or value > self.above)
            and (self.multiple_of is None or value % self.multiple_of == 0)
        )


def convert(value: Any, kind: type) -> Any:
    """The value as `kind`, or None where that loses something."""
    if kind is bool:
        return value if isinstance(value, bool) else {"1": True, "true": True, "0": False, "false": False}.get(value)
    if isinstance(value, bool):
        return None
    if kind is str:
        return value if isinstance(value, str) else None
    try:
        converted = kind(value)
    except (TypeError, ValueError, OverflowError):
        return None
    lossy = kind is int and isinstance(value, float) and value != converted
    return None if lossy or converted != converted else converted  # NaN is no value
