"""Where settings are said: variables of an environment, and a file of TOML. Knows names; no default and no limit."""

import difflib
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from strata.errors import SettingsError


def find_variable(
    name: str, variables: Sequence[str], environment: Mapping[str, str], *, may_be_empty: bool
) -> str | None:
    """Which of a setting's variables is set. Raises SettingsError if two say different things."""
    found = [each for each in variables if environment.get(each, "") or (may_be_empty and each in environment)]
    if len({environment[each] for each in found}) > 1:
        values = " and ".join(f"{each} is {environment[each]!r}" for each in found)
        raise SettingsError(f"setting {name}: {values}: set one of them")
    return found[0] if found else None


def file_of(asked: Path | None, named: str | None, environment: Mapping[str, str]) -> tuple[Path | None, bool]:
    """The settings file, and whether somebody asked for it, so that it must be there: as a path, or by name."""
    chosen = asked or (Path(named) if named else None)
    base = environment.get("XDG_CONFIG_HOME") or (environment["HOME"] + "/.config" if "HOME" in environment else "")
    return chosen or (Path(base) / "strata" / "settings.toml" if base else None), chosen is not None


def read_settings_file(path: Path | None, is_asked: bool, names_of: Mapping[str, set[str]]) -> dict[str, Any]:
    """What the file says, by section; nothing if there is none and nobody asked for it.

    names_of: the settings of every section. Raises SettingsError for what cannot be read, and for other names.
    """
    if path is None:
        return {}
    try:
        if not is_asked and not path.is_file():
            return {}
        content = tomllib.loads(path.read_text("utf-8"))
    except OSError as reason:
        raise SettingsError(f"the settings file {path} cannot be read: {reason.strerror}") from reason
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as reason:
        raise SettingsError(f"the settings file {path} is not TOML: {reason}") from reason
    for section_name, values in content.items():
        if section_name not in names_of or not isinstance(values, dict):
            raise SettingsError(f"{path}: unknown section {section_name}; there are {', '.join(names_of)}")
        for name in values:
            if name not in names_of[section_name]:
                near = nearest(name, names_of[section_name])
                raise SettingsError(f"{path}: unknown setting {name} in [{section_name}]{near}")
    return content


def nearest(name: str, known: set[str]) -> str:
    """The end of a refusal of a name: the one that was meant perhaps, or all of them."""
    close = difflib.get_close_matches(name, sorted(known), n=1)
    return f"; did you mean {close[0]}?" if close else f"; there are {', '.join(sorted(known))}"
