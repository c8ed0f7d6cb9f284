"""Command line flags made from the settings, so that a setting is written down once.

Knows the settings' names, types and help; knows no command.
"""

from collections.abc import Sequence
from dataclasses import asdict, field, fields, make_dataclass
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter, Token

from strata.limits import Limits
from strata.settings import EngineSettings, GenerationSettings, ServerSettings, describe


def as_written(kind: Any, tokens: Sequence[Token]) -> str:
    """A flag's text: `settings` makes a value of it, so that a flag takes what the environment and a file take."""
    return tokens[-1].value


def whole_number(kind: Any, tokens: Sequence[Token]) -> int:
    """A flag's text as an int; the parser by itself would round `1.5`."""
    try:
        return int(tokens[-1].value)
    except ValueError:
        raise ValueError(f"{tokens[-1].value!r} is no whole number") from None


def given_path(kind: Any, tokens: Sequence[Token]) -> Path:
    """A flag's text as a path; an empty one is a variable that a script forgot, not a name of this folder."""
    if not tokens[-1].value:
        raise ValueError("the path is empty: give one")
    return Path(tokens[-1].value)


WholeNumber = Annotated[int, Parameter(converter=whole_number)]
GivenPath = Annotated[Path, Parameter(converter=given_path)]


def _flags(section: type) -> Any:
    """A frozen dataclass with one optional flag for each setting of a section; None means "not said"."""
    defaults = {each.name: each.default for each in fields(section)}
    members = [
        (
            name,
            Annotated[kind | None, _parameter(kind, limits, defaults[name])],
            field(default=None),
        )
        for name, (kind, limits) in describe(section).items()
    ]
    made = make_dataclass(section.__name__.replace("Settings", "Flags"), members, frozen=True)
    made.__module__ = __name__  # the command line parser takes classes of the standard library for plain values
    return made


def _parameter(kind: type, limits: Limits, default: Any) -> Parameter:
    """A flag that says yes takes no value; `--no-` before its name says no to what is yes otherwise."""
    line = f"{limits.help} ({', '.join(limits.choices)})" if limits.choices else limits.help
    if kind is bool:
        return Parameter(help=line, negative=None if default else "")
    return Parameter(help=line, converter=as_written)


EngineFlags: Any = _flags(EngineSettings)
GenerationFlags: Any = _flags(GenerationSettings)
ServerFlags: Any = _flags(ServerSettings)

FLAT = Parameter(name="*")  # the section's fields are flags of the command itself


def said(*flags: Any) -> dict[str, Any]:
    """What the user said, by setting; sections that were not touched are None."""
    return {name: value for section in flags if section is not None for name, value in asdict(section).items()}
