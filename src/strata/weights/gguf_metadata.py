"""The key-value part of a GGUF file: read without trust, arrays left in the file until somebody asks for them.

Knows how values are coded and what may be wrong with them; knows no key beyond its spelling and no tensor.
"""

import math
import mmap
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from strata.errors import ConfigError, WeightFileError

Buffer = mmap.mmap | bytes

TEXT, ARRAY = 8, 9
# Kind of value -> how struct and numpy call it.
SCALARS = {
    0: "<u1", 1: "<i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4", 6: "<f4", 7: "<u1", 10: "<u8", 11: "<i8", 12: "<f8",
}  # fmt: skip
BOOL = 7
_LETTERS = {"u1": "B", "i1": "b", "u2": "H", "i2": "h", "u4": "I", "i4": "i", "f4": "f", "u8": "Q", "i8": "q",
            "f8": "d"}  # fmt: skip
_STRUCTS = {kind: struct.Struct("<" + _LETTERS[word[1:]]) for kind, word in SCALARS.items()}
_U32, _U64 = struct.Struct("<I"), struct.Struct("<Q")
_ANYTHING = object()


@dataclass(frozen=True)
class StoredArray:
    """An array that is still in the file: `count` values of one kind from byte `begin` on."""

    kind: int
    count: int
    begin: int
    end: int


class Cursor:
    """Reads a file's header value by value; every step is checked against the file's end before it is made."""

    def __init__(self, data: Buffer, file: Path, position: int = 0) -> None:
        self.data, self.file, self.position = data, file, position
        self.end = len(data)

    def require(self, size: int, what: str) -> None:
        """Refuse a file that ends before `size` more bytes."""
        if size > self.end - self.position:
            raise WeightFileError(
                f"{self.file} is truncated or broken: {what} needs {size:,} bytes at byte {self.position:,}, the file "
                f"ends at {self.end:,}"
            )

    def u32(self, what: str) -> int:
        """An unsigned 32-bit number."""
        return self._number(_U32, what)

    def u64(self, what: str) -> int:
        """An unsigned 64-bit number."""
        return self._number(_U64, what)

    def text(self, what: str) -> str:
        """A string with its length in front, in UTF-8."""
        length = self.u64(f"the length of {what}")
        self.require(length, what)
        raw = self.data[self.position : self.position + length]
        self.position += length
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError as failure:
            raise WeightFileError(f"{self.file}: {what} is not valid UTF-8 (byte {failure.start} of it)") from None

    def value(self, key: str) -> Any:
        """A value with its kind in front; an array stays in the file as a `StoredArray`."""
        kind = self.u32(f"the kind of {key}")
        if kind == TEXT:
            return self.text(f"the value of {key}")
        if kind == ARRAY:
            return self._array(key)
        if kind not in _STRUCTS:
            raise WeightFileError(f"{self.file}: {key} has a value of kind {kind}, which GGUF does not have")
        found = self._number(_STRUCTS[kind], f"the value of {key}")
        return bool(found) if kind == BOOL else found

    def _array(self, key: str) -> StoredArray:
        kind, count = self.u32(f"the kind of {key}"), self.u64(f"the length of {key}")
        if kind == TEXT:
            self.require(8 * count, key)
            begin = self.position
            self._skip_texts(key, count)
            return StoredArray(kind, count, begin, self.position)
        if kind not in _STRUCTS:
            what = "arrays" if kind == ARRAY else f"values of kind {kind}"
            raise WeightFileError(f"{self.file}: {key} is an array of {what}, which is not supported")
        size = count * _STRUCTS[kind].size
        self.require(size, key)
        self.position += size
        return StoredArray(kind, count, self.position - size, self.position)

    def _skip_texts(self, key: str, count: int) -> None:
        position, unpack, data = self.position, _U64.unpack_from, self.data
        try:
            for _ in range(count):
                position += 8 + unpack(data, position)[0]
        except (struct.error, OverflowError):
            position = self.end + 1
        if position > self.end:
            raise WeightFileError(f"{self.file} is truncated or broken: a string of {key} goes past the file's end")
        self.position = position

    def _number(self, form: struct.Struct, what: str) -> Any:
        self.require(form.size, what)
        found = form.unpack_from(self.data, self.position)[0]
        self.position += form.size
        return found


class Metadata(Mapping[str, Any]):
    """Keys and values of a file. Indexing gives lists for arrays; the named getters check what they find.

    The getters raise ConfigError that names the key: it is missing, of another kind or not a usable number.
    """

    def __init__(self, file: Path, data: Buffer, values: dict[str, Any]) -> None:
        self.file = file
        self._data = data
        self._values = values

    def __getitem__(self, key: str) -> Any:
        value = self._values[key]
        return self._list(key, value) if isinstance(value, StoredArray) else value

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __contains__(self, key: object) -> bool:
        return key in self._values

    def text(self, key: str, default: Any = _ANYTHING) -> Any:
        """A string."""
        return self._checked(key, default, lambda value: isinstance(value, str), "a string")

    def integer(self, key: str, default: Any = _ANYTHING, minimum: int = 0) -> Any:
        """A whole number of at least `minimum`."""
        return self._checked(
            key,
            default,
            lambda value: isinstance(value, int) and not isinstance(value, bool) and value >= minimum,
            f"a whole number of at least {minimum}",
        )

    def number(self, key: str, default: Any = _ANYTHING) -> Any:
        """A finite number."""

        def is_number(value: Any) -> bool:
            return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)

        return self._checked(key, default, is_number, "a finite number")

    def flag(self, key: str, default: Any = _ANYTHING) -> Any:
        """True or false."""
        return self._checked(key, default, lambda value: isinstance(value, bool), "true or false")

    def integers(self, key: str, default: Any = _ANYTHING) -> Any:
        """A list of whole numbers."""
        return self._array(key, default, lambda kind: kind not in (TEXT, 6, 12), "a list of whole numbers")

    def texts(self, key: str, default: Any = _ANYTHING) -> Any:
        """A list of strings."""
        return self._array(key, default, lambda kind: kind == TEXT, "a list of strings")

    def count(self, key: str) -> int:
        """How many values the array `key` has, without reading them; 0 if there is no such array."""
        value = self._values.get(key)
        return value.count if isinstance(value, StoredArray) else 0

    def _array(self, key: str, default: Any, allows: Any, words: str) -> Any:
        value = self._checked(key, default, lambda found: isinstance(found, StoredArray) and allows(found.kind), words)
        return self._list(key, value) if isinstance(value, StoredArray) else value

    def _checked(self, key: str, default: Any, allows: Any, words: str) -> Any:
        if key not in self._values:
            if default is _ANYTHING:
                raise ConfigError(f"{self.file} has no metadata key {key}; this kind of model needs it")
            return default
        value = self._values[key]
        if not allows(value):
            shown = "an array" if isinstance(value, StoredArray) else repr(value)[:60]
            raise ConfigError(f"{self.file}: the metadata key {key} is {shown}; {words} works")
        return value

    def _list(self, key: str, array: StoredArray) -> list[Any]:
        if array.kind == TEXT:
            return self._texts(key, array)
        values = np.frombuffer(self._data, dtype=SCALARS[array.kind], count=array.count, offset=array.begin)
        return values.astype(bool).tolist() if array.kind == BOOL else values.tolist()

    def _texts(self, key: str, array: StoredArray) -> list[str]:
        raw = self._data[array.begin : array.end]
        unpack, position, found = _U64.unpack_from, 0, []
        try:
            for _ in range(array.count):
                begin = position + 8
                position = begin + unpack(raw, position)[0]
                found.append(raw[begin:position].decode("utf-8"))
        except UnicodeDecodeError:
            raise WeightFileError(f"{self.file}: string {len(found)} of {key} is not valid UTF-8") from None
        return found
