"""Reading a JSON object from a file that nobody vouches for: size limit, UTF-8, duplicates, depth.

Knows no field of any file; the caller says what the file is called and which error its defects are.
"""

import json
import stat
from pathlib import Path
from typing import Any

from strata.errors import StrataError

MAX_JSON_BYTES = 256 << 20  # an index of a million tensors takes about 100 MB


class _DuplicateKeyError(ValueError):
    """An object of the file names one key twice."""


def load_json_object(path: Path, error: type[StrataError]) -> dict[str, Any]:
    """The JSON object in `path`. Every defect is raised as `error` with one sentence that names the file."""
    return parse_json_object(read_regular_file(path, MAX_JSON_BYTES, error), str(path), error)


def read_regular_file(path: Path, limit_bytes: int, error: type[StrataError]) -> bytes:
    """All bytes of a regular file of at most `limit_bytes`; anything else is raised as `error`."""
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise error(f"{path} is not a regular file")
        if status.st_size > limit_bytes:
            raise error(f"{path} holds {status.st_size:,} bytes; at most {limit_bytes:,} are read of such a file")
        return path.read_bytes()
    except OSError as failure:
        raise error(f"{path} cannot be read: {reason_of(failure)}") from None


def parse_json_object(data: bytes, what: str, error: type[StrataError]) -> dict[str, Any]:
    """`data` as a JSON object without duplicate keys. `what` names the place in the sentences."""
    try:
        value = json.loads(data.decode("utf-8"), object_pairs_hook=_unique_keys)
    except UnicodeDecodeError as failure:
        raise error(f"{what} is not valid UTF-8: byte {failure.start} is 0x{data[failure.start]:02x}") from None
    except _DuplicateKeyError as failure:
        raise error(f"{what} names {failure} twice") from None
    except RecursionError:
        raise error(f"{what} is not usable JSON: it is nested too deeply") from None
    except ValueError as failure:
        raise error(f"{what} is not valid JSON: {failure}") from None
    if not isinstance(value, dict):
        raise error(f"{what} must hold a JSON object, not a {type(value).__name__}")
    return value


def reason_of(failure: OSError) -> str:
    """The system's reason in lower case: `permission denied`, `no such file or directory`."""
    return (failure.strerror or type(failure).__name__).lower()


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise _DuplicateKeyError(repr(key[:200]))
            seen.add(key)
    return values
