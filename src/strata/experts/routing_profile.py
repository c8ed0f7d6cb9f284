"""Which experts a model's conversations asked for, kept from one run to the next in a file of the user's cache.

Knows the file and trusts none; knows no policy. A file is one line of JSON, then float32 [layers, experts]. It appears
whole or not at all, and nothing that goes wrong with it ends a run: there is a sentence for the user instead.
"""

import errno
import fcntl
import hashlib
import json
import math
import os
import re
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from strata.errors import ModelError
from strata.weights.json_files import parse_json_object, read_regular_file, reason_of

FORMAT = "strata-expert-profile-1"
MOST_HEADER_BYTES = 1 << 16
MOST_EXPERTS = 1 << 24  # layers x experts
MOST_HEAT = 1e15
LOCK_S, LOOK_S = 5.0, 0.01  # how long a run waits for others that write, which takes them milliseconds, and how often
HALF_LIFE = 100_000  # requests a layer after which older ones count half: 10,000 windows of ten experts


@dataclass(frozen=True)
class ProfiledModel:
    """Whose experts they are. `digest` tells models of one name and shape apart, see `model_digest`."""

    name: str
    layers: int  # those that have experts
    experts: int
    digest: str


@dataclass(frozen=True)
class LoadedProfile:
    """What a file held: windows that asked for each expert, float32 [layers, experts], or None, and why."""

    heat: NDArray[np.float32] | None
    notice: str | None = None  # a sentence for the user


def model_digest(config: Mapping[str, Any], tensors: Mapping[str, tuple[int, ...]]) -> str:
    """A model by its config and its tensors' names and shapes; weights are not read."""
    facts = {"config": config, "tensors": {name: list(shape) for name, shape in tensors.items()}}
    return hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()


def profile_path(folder: Path, model: ProfiledModel) -> Path:
    """Where a model's profile is kept unless the user names a file."""
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", model.name).strip("-.")[:80] or "model"
    return folder / f"{name}-{model.digest[:16]}.profile"


def load_profile(path: Path, model: ProfiledModel) -> LoadedProfile:
    """The profile in a file; no heat and no notice if there is no file yet."""
    if not os.path.lexists(path):
        return LoadedProfile(None)
    try:
        found, values = _read(path)
        if found != model:
            return LoadedProfile(None, f"{path} is a profile of another model: {_difference(found, model)}; not used")
        return LoadedProfile(_heat(path, values, model))
    except ModelError as failure:
        return LoadedProfile(None, f"{failure}; the profile is not used")


def add_to_profile(path: Path, model: ProfiledModel, heat: NDArray[np.floating]) -> str | None:
    """Add what a run asked for, [layers, experts], to what the file holds by now; None, or why not in a sentence.

    Runs that end at the same moment wait for each other, at a file beside the profile that stays.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _locked(path.parent / f".{path.name[:80]}.lock"):
            return save_profile(path, model, merged_heat(load_profile(path, model).heat, heat))
    except OSError as failure:
        return _unwritten(path, reason_of(failure))


def save_profile(path: Path, model: ProfiledModel, heat: NDArray[np.floating]) -> str | None:
    """Write the file anew, its folder too if there is none; None, or a sentence for the user that says why not.

    What lies there stays if this fails, or if it is no profile of this model.
    """
    if heat.shape != (model.layers, model.experts):
        raise ValueError(f"heat of shape {list(heat.shape)} for {model.layers} layers of {model.experts} experts")
    try:
        if os.path.lexists(path) and _read(path)[0] != model:
            return f"{path} is a profile of another model and was left as it is"
    except ModelError as failure:
        return f"{failure}; it was left as it is"
    header = json.dumps({"format": FORMAT} | asdict(model)).encode()
    values = np.minimum(heat, MOST_HEAT).astype("<f4")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _replace(path, header + b"\n" + values.tobytes())
    except OSError as failure:
        has_no_room = failure.errno in (errno.ENOSPC, errno.EDQUOT)
        return _unwritten(path, "the disk has no room" if has_no_room else reason_of(failure))
    return None


def _unwritten(path: Path, why: str) -> str:
    return f"the profile of experts {path} cannot be written: {why}; the next start does without this run's"


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """No other run is in such a block over this file. Raises OSError if one is for longer than it may be."""
    with path.open("ab") as file:
        latest = time.monotonic() + LOCK_S
        while not _try_lock(file):
            if time.monotonic() > latest:
                raise TimeoutError(errno.ETIMEDOUT, f"another program has held its lock for {LOCK_S:g} s")
            time.sleep(LOOK_S)
        yield


def _try_lock(file: BinaryIO) -> bool:
    """Whether the file is this run's now, until it is closed."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def merged_heat(old: NDArray[np.floating] | None, new: NDArray[np.floating]) -> NDArray[np.float64]:
    """A profile after a run that asked `new` [layers, experts] times: the more it asked, the more old habits fade."""
    if old is None:
        return new.astype(np.float64)
    faded = 0.5 ** (float(new.sum()) / len(new) / HALF_LIFE)
    return old.astype(np.float64) * faded + new


def _read(path: Path) -> tuple[ProfiledModel, bytes]:
    """Whose profile a file is, and what stands behind its header. Raises ModelError."""
    data = read_regular_file(path, MOST_HEADER_BYTES + 4 * MOST_EXPERTS, ModelError)
    line, _, values = data.partition(b"\n")
    if len(line) > MOST_HEADER_BYTES or not line.startswith(b"{"):
        raise ModelError(f"{path} is no profile of experts")
    header = parse_json_object(line, f"the header of {path}", ModelError)
    if header.get("format") != FORMAT:
        raise ModelError(f"{path} is no profile of experts: its header does not say format {FORMAT}")
    kinds = {"name": str, "layers": int, "experts": int, "digest": str}
    for field, kind in kinds.items():
        if type(header.get(field)) is not kind:
            raise ModelError(f"{path}: {field} is {str(header.get(field))[:80]!r}; it must be of type {kind.__name__}")
    return ProfiledModel(**{field: header[field] for field in kinds}), values


def _heat(path: Path, values: bytes, model: ProfiledModel) -> NDArray[np.float32]:
    needed = 4 * math.prod((model.layers, model.experts))
    if len(values) != needed:
        raise ModelError(f"{path} is damaged: {needed:,} bytes stand behind its header, not {len(values):,}")
    heat = np.frombuffer(values, "<f4").reshape(model.layers, model.experts)
    if not np.all((heat >= 0) & (heat <= MOST_HEAT)):
        raise ModelError(f"{path} is damaged: it holds numbers that count nothing")
    return heat.astype(np.float32)


def _difference(found: ProfiledModel, model: ProfiledModel) -> str:
    """The first field that differs, in words."""
    for field in ("name", "layers", "experts"):
        theirs, ours = getattr(found, field), getattr(model, field)
        if theirs != ours:
            return f"its {field} is {str(theirs)[:80]!r}, not {str(ours)[:80]!r}"
    return "its config or tensors differ"


def _replace(path: Path, content: bytes) -> None:
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name[:80]}.partial-", dir=path.parent)
    partial = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as out:
            out.write(content)
            out.flush()
            os.fsync(out.fileno())  # a name that outlives its bytes would be a damaged profile after a power cut
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
