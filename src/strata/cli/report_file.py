"""The file into which a command writes what it found: looked at before anything is measured, written at the end.

Knows no report.
"""

import os
from pathlib import Path

from strata.errors import EngineError, SettingsError


def check_report_file(file: Path | None, flag: str = "--json") -> None:
    """Raises SettingsError for a place that cannot hold the file, so that nobody measures in vain."""
    if file is None:
        return
    if file.is_dir():
        raise SettingsError(f"{flag} {file} is a folder: give the name of a file")
    if not file.parent.is_dir():
        raise SettingsError(f"{flag} {file} cannot be written, {file.parent} is no folder: make it or give another")
    if not os.access(file if file.exists() else file.parent, os.W_OK):
        raise SettingsError(f"{flag} {file} may not be written by this user: give another place")


def write_report(file: Path | None, text: str, flag: str = "--json") -> None:
    """Write the file, if one is wanted. Raises EngineError if the system refuses; what was printed is not lost."""
    if file is None:
        return
    try:
        file.write_text(text + "\n", "utf-8")
    except OSError as failure:
        reason = failure.strerror or str(failure)
        raise EngineError(f"{flag} {file} could not be written ({reason}); the numbers stand above") from None
