"""A stream's wait is one call of the driver with the stream, the word's address, its value and GEQ; refusals are told.

The driver is a pretended one.
"""

import ctypes
from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch

from strata.errors import EngineError
from strata.kernels import stream_waits

STREAM = 1234
NOT_SUPPORTED = 801


class Function:
    """One of a library, as ctypes has them: types may be set."""

    def __init__(self, called: Callable[..., int]) -> None:
        self._called = called

    def __call__(self, *arguments: object) -> int:
        return self._called(*arguments)


def driver(monkeypatch: pytest.MonkeyPatch, answer: int) -> list[tuple[object, ...]]:
    """Pretend there is a driver that answers so; what it was asked."""
    asked: list[tuple[object, ...]] = []

    def wait(*arguments: object) -> int:
        asked.append(arguments)
        return answer

    def name(code: int, words: object) -> int:
        words._obj.value = b"CUDA_ERROR_NOT_SUPPORTED"  # type: ignore[attr-defined]
        return 0

    made = SimpleNamespace(cuStreamWaitValue32_v2=Function(wait), cuGetErrorName=Function(name))
    use_library(monkeypatch, lambda path: made)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: SimpleNamespace(cuda_stream=STREAM))
    return asked


def use_library(monkeypatch: pytest.MonkeyPatch, load: Callable[[str], object]) -> None:
    stream_waits._driver.cache_clear()
    monkeypatch.setattr(ctypes, "CDLL", load)


@pytest.fixture(autouse=True)
def forgotten(monkeypatch: pytest.MonkeyPatch) -> object:
    yield
    stream_waits._driver.cache_clear()


WORD, DEVICE = torch.zeros(1, dtype=torch.int32), torch.device("cuda", 0)


def test_the_current_stream_is_asked_to_wait_for_at_least_the_value(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = driver(monkeypatch, 0)
    stream_waits.wait_for_word(WORD, 1, DEVICE)
    assert asked == [(STREAM, WORD.data_ptr(), 1, 0)]


def test_a_driver_that_refuses_is_named_with_what_works_instead(monkeypatch: pytest.MonkeyPatch) -> None:
    driver(monkeypatch, NOT_SUPPORTED)
    with pytest.raises(EngineError, match=r"CUDA_ERROR_NOT_SUPPORTED, 801.*expert_wait = .spin."):
        stream_waits.wait_for_word(WORD, 1, DEVICE)


def test_a_driver_that_is_too_old_or_missing_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(path: str) -> object:
        raise OSError(f"{path}: cannot open shared object file")

    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: SimpleNamespace(cuda_stream=STREAM))
    for load, words in ((missing, "libcuda.so.1: cannot open"), (lambda path: SimpleNamespace(), "has no attribute")):
        use_library(monkeypatch, load)
        with pytest.raises(EngineError, match=rf"from 11\.7 on is missing: .*{words}.*spin"):
            stream_waits.wait_for_word(WORD, 1, DEVICE)
