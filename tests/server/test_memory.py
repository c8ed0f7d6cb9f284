"""Memory of large texts goes back to the system."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import strata

# Small pieces below a last one that stays: what a C library keeps unless it is told to give it back.
_CHECK = """
import ctypes
from strata.server.memory import LARGE_BYTES, give_back
resident = lambda: int(open('/proc/self/statm').read().split()[1]) * 4096
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, (ctypes.c_void_p,)
held = []
for _ in range(40_000):
    held.append(libc.malloc(2000))
    ctypes.memset(ctypes.c_void_p(held[-1]), 1, 2000)
for place in held[:-1]:
    libc.free(place)
before = resident()
give_back(LARGE_BYTES - 1)
assert resident() > before - (10 << 20), 'a small text'
give_back(LARGE_BYTES)
assert resident() < before - (40 << 20), (before, resident())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="other systems give memory back by themselves")
def test_what_is_free_is_given_back_behind_a_large_text_only() -> None:
    environment = dict(os.environ, PYTHONPATH=str(Path(strata.__file__).parent.parent))
    result = subprocess.run([sys.executable, "-c", _CHECK], capture_output=True, text=True, env=environment)
    assert result.returncode == 0, result.stderr
