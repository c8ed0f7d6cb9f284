"""Ctrl-C: the first is the reply's, the second the program's, and afterwards all is as before."""

import signal
import threading

import pytest

from strata.cli.interrupt import ctrl_c_calls


def test_first_cancels_second_interrupts_and_the_handler_comes_back() -> None:
    before = signal.getsignal(signal.SIGINT)
    calls: list[int] = []
    with pytest.raises(KeyboardInterrupt), ctrl_c_calls(lambda: calls.append(1)):
        signal.raise_signal(signal.SIGINT)
        assert calls == [1]
        signal.raise_signal(signal.SIGINT)
    assert calls == [1]
    assert signal.getsignal(signal.SIGINT) is before


def test_other_threads_leave_signals_alone() -> None:
    before = signal.getsignal(signal.SIGINT)
    seen: list[object] = []

    def body() -> None:
        with ctrl_c_calls(lambda: None):
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=body)
    thread.start()
    thread.join()
    assert seen == [before]
