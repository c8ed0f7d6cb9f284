"""The place of a model that is to be written: nothing may be there yet, the folder around it must be.

Knows paths; what is written there is the writers' matter (`writer`, `gguf_writer`).
"""

import os
from pathlib import Path

from strata.errors import StrataError
from strata.weights.json_files import reason_of


def folder_of_new(target: Path) -> Path:
    """The folder in which `target` will appear. Raises StrataError if `target` exists or the folder does not."""
    if os.path.lexists(target):
        raise StrataError(f"{target} exists already; give a path that does not, or remove it first")
    folder = target.absolute().parent
    if not os.path.lexists(folder):
        raise StrataError(f"{target} cannot be written: there is no folder {folder}; make it first (mkdir -p)")
    if not os.path.isdir(folder):
        raise StrataError(f"{target} cannot be written: {folder} is no folder; give another place")
    return folder


def nothing_can_be_made(folder: Path, failure: OSError) -> StrataError:
    """What to say where the system lets no file or folder be made."""
    return StrataError(f"nothing can be written in {folder}: {reason_of(failure)}; give another place")
