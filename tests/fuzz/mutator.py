"""Breaks files at random, mostly where a header's numbers stand. The same seed breaks them in the same way.

Knows bytes; knows neither what they mean nor who reads them.
"""

import random
import struct
from collections.abc import Callable

# What counts and offsets look like when somebody wants a reader to stumble.
_NUMBERS = (
    0, 1, 2, 3, 7, 8, 9, 13, 31, 32, 33, 255, 256, 65_535, 1 << 31, (1 << 31) - 1, (1 << 32) - 1, 1 << 32, 1 << 40,
    1 << 60, 1 << 61, 1 << 62, 1 << 63, (1 << 63) - 1, (1 << 64) - 1, (1 << 64) - 32,
)  # fmt: skip
_WORDS = (b"\xff", b"\x00", b"\xf0\x9f", b"NaN", b"[]", b'"', b"-1", b"1e999", b"GGUF")


def mutate(data: bytes, header_bytes: int, chance: random.Random) -> bytes:
    """One broken version of a file; nine of ten changes fall into its first `header_bytes`."""
    broken = bytearray(data)
    for _ in range(chance.choice((1, 1, 1, 2, 3, 8))):
        end = header_bytes if chance.random() < 0.9 else len(broken)
        chance.choice(_STEPS)(broken, max(1, min(end, len(broken))), chance)
    return bytes(broken)


Step = Callable[[bytearray, int, random.Random], None]


def _flip_bit(data: bytearray, end: int, chance: random.Random) -> None:
    if data:
        data[chance.randrange(end)] ^= 1 << chance.randrange(8)


def _put_number(data: bytearray, end: int, chance: random.Random) -> None:
    """A number of 32 or 64 bits over what stands there."""
    form = chance.choice(("<I", "<Q"))
    raw = struct.pack(form, chance.choice(_NUMBERS) & (0xFFFFFFFF if form == "<I" else (1 << 64) - 1))
    place = chance.randrange(end)
    data[place : place + len(raw)] = raw


def _change_number(data: bytearray, end: int, chance: random.Random) -> None:
    """A number that is there, a little larger or smaller."""
    place = chance.randrange(end)
    if place + 8 <= len(data):
        value = struct.unpack_from("<Q", data, place)[0]
        struct.pack_into("<Q", data, place, (value + chance.choice((-32, -1, 1, 32))) % (1 << 64))


def _put_word(data: bytearray, end: int, chance: random.Random) -> None:
    word, place = chance.choice(_WORDS), chance.randrange(end)
    data[place : place + len(word)] = word


def _cut(data: bytearray, end: int, chance: random.Random) -> None:
    del data[chance.randrange(end) :]


def _take_out(data: bytearray, end: int, chance: random.Random) -> None:
    place = chance.randrange(end)
    del data[place : place + chance.choice((1, 4, 8, 100))]


def _repeat(data: bytearray, end: int, chance: random.Random) -> None:
    place = chance.randrange(end)
    data[place:place] = data[place : place + chance.choice((1, 8, 40, 200))]


def _copy(data: bytearray, end: int, chance: random.Random) -> None:
    """One stretch of the file over another."""
    source, place, size = chance.randrange(end), chance.randrange(end), chance.choice((4, 8, 16, 64))
    data[place : place + size] = data[source : source + size]


_STEPS: tuple[Step, ...] = (
    _flip_bit, _flip_bit, _put_number, _put_number, _change_number, _put_word, _cut, _take_out, _repeat, _copy,
)  # fmt: skip
