"""What is done with a broken file: it is opened and read as far as it goes, and may end only in an error of ours.

Knows the readers and the small real files that are broken. Used by the tests and by `python -m tests.fuzz`.
"""

import random
import struct
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from strata.cli.convert import convert_model
from strata.cli.synth import synth
from strata.errors import StrataError
from strata.models.families import family_of
from strata.text.gguf_tokenizer import tokenizer_from_gguf
from strata.weights.fit import require_fit
from strata.weights.gguf_source import open_gguf_model
from strata.weights.header import read_header
from strata.weights.safetensors import open_model
from tests.fuzz.mutator import mutate

_FIELDS = ["vocab_size=64", "hidden_size=32", "num_experts=4", "num_attention_heads=2", "head_dim=16", "max_position=1"]
_FOLDER = TemporaryDirectory(prefix="strata-fuzz-")
# Opening may take as much again as the file for what it says, and this for what every opening needs.
MOST_BYTES_A_FILE_BYTE = 24
MOST_FIXED_BYTES = 4 << 20


@dataclass(frozen=True)
class Subject:
    """A good file, how long its header is, and what reads it."""

    name: str
    data: bytes
    header_bytes: int
    read: Callable[[Path], None]


@cache
def subjects() -> tuple[Subject, ...]:
    """Small real files of several kinds."""
    folder = Path(_FOLDER.name)
    found = []
    for family, kind in (("qwen4_exp", "Q4_0"), ("qwen3_next", "Q8_0"), ("qwen3_moe", "BF16")):
        synth(family, folder / family, fields=[field for field in _FIELDS if "max_position" not in field])
        path = folder / f"{family}.gguf"
        _add_vocabulary(folder / family)
        convert_model(folder / family, path, kind)
        begin = min(tensor.begin for tensor in open_gguf_model(path).model.tensors.values())
        found.append(Subject(path.name, path.read_bytes(), begin, read_gguf))
    header = (folder / "qwen3_moe" / "model.safetensors").read_bytes()
    found.append(Subject("model.safetensors", header, 8 + struct.unpack_from("<Q", header)[0], read_safetensors))
    return tuple(found)


def _add_vocabulary(directory: Path) -> None:
    """A tokenizer of a few tokens: a small file is broken where it matters more often than a large one."""
    vocabulary = ",".join(f'"{text}": {index}' for index, text in enumerate("abcdefgh"))
    step = '{"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true}'
    (directory / "tokenizer.json").write_text(
        f'{{"added_tokens": [], "pre_tokenizer": {step}, "decoder": {step}, "model": {{"type": "BPE", "vocab": '
        f'{{{vocabulary}, "ab": 8, "cd": 9}}, "merges": ["a b", "c d"]}}}}'
    )


def read_gguf(path: Path) -> None:
    """Everything that `strata generate` does with a file before it computes, and two tensors."""
    source = open_gguf_model(path)
    family = family_of(source.config)
    require_fit(source, family.expected_tensors(family.parse_config(source.config)))
    tokenizer_from_gguf(source.model.metadata)
    for name in list(source.names())[:2]:
        source.tensor(name, torch.float32)


def read_safetensors(path: Path) -> None:
    """The header, and a tensor if the file is a whole model."""
    read_header(path)
    (path.parent / "config.json").write_text("{}")
    open_model(path.parent)


def broken_case(number: int, seed: int) -> tuple[Subject, bytes]:
    """Case `number` of a run: which file, and its bytes."""
    chance = random.Random(f"{seed}:{number}")
    subject = chance.choice(subjects())
    return subject, mutate(subject.data, subject.header_bytes, chance)


def try_case(subject: Subject, data: bytes, folder: Path, *, measure: bool = False) -> bool:
    """Read one broken file; True if it was refused. Anything but a StrataError of one line comes out of here.

    `measure`: also hold what was allocated against the file's size.
    """
    path = folder / ("model.safetensors" if subject.read is read_safetensors else "m.gguf")
    path.unlink(missing_ok=True)  # a file that is cut to nothing and written again waits for the disk
    path.write_bytes(data)
    if measure:
        tracemalloc.start()
    try:
        subject.read(path)
    except StrataError as refusal:
        assert "\n" not in str(refusal), f"more than one line: {refusal}"
        assert len(str(refusal)) < 2000, f"a sentence of {len(str(refusal)):,} characters"
        return True
    finally:
        if measure:
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
            limit = MOST_FIXED_BYTES + MOST_BYTES_A_FILE_BYTE * len(data)
            assert peak < limit, f"{peak:,} bytes were allocated for a file of {len(data):,}"
    return False
