"""The process border from its parent's side: start, failures of every kind, silence, the parent's own death."""

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from strata.engine import client
from strata.engine.client import EngineLost, EngineProcess
from strata.engine.messages import (
    Cancel,
    Drawn,
    Ended,
    FromEngine,
    Load,
    LoadFailed,
    Loading,
    Ready,
    Statistics,
    Stop,
    Submit,
)
from strata.engine.request import TokenRequest
from strata.sampling.options import SamplingOptions
from strata.settings import EngineSettings
from strata.types import FinishReason
from tests.engine.fake_process import (
    ANSWER,
    CRASH,
    ENDLESS,
    FACTS,
    HANG,
    LOSE_GPU,
    LOSE_LATER,
    READ_EXPERTS,
    READING_SECONDS,
)

ROOT = Path(__file__).parents[2]
ENVIRONMENT = dict(os.environ, PYTHONPATH=f"{ROOT / 'src'}:{ROOT}")
SOON = 20.0  # seconds after which something that should happen has not


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[EngineProcess]]:
    """Processes that a test started; they are gone afterwards."""
    monkeypatch.setattr(client, "MODULE", "tests.engine.fake_process")
    processes: list[EngineProcess] = []
    yield processes
    for process in processes:
        process.kill()


def start(started: list[EngineProcess], model: str | None = None) -> EngineProcess:
    process = EngineProcess.start(Load(model, EngineSettings()), ENVIRONMENT)
    started.append(process)
    return process


def until(process: EngineProcess, kind: type) -> list[FromEngine]:
    """Everything up to the first message of a kind."""
    messages: list[FromEngine] = []
    deadline = time.monotonic() + SOON
    while not messages or not isinstance(messages[-1], kind):
        assert time.monotonic() < deadline, f"no {kind.__name__} among {messages}"
        message = process.receive(1.0)
        if message is not None:
            messages.append(message)
    return messages


def submit(process: EngineProcess, number: int, *prompt: int) -> None:
    process.send(Submit(number, TokenRequest(prompt, SamplingOptions())))


def lost(process: EngineProcess) -> str:
    """What `receive` says once it cannot be waited for."""
    deadline = time.monotonic() + SOON
    with pytest.raises(EngineLost) as caught:
        while time.monotonic() < deadline:
            process.receive(1.0)
    return str(caught.value)


def test_from_start_to_stop(started: list[EngineProcess]) -> None:
    process = start(started)
    *loading, ready = until(process, Ready)
    assert isinstance(ready, Ready)
    assert ready.facts == FACTS
    assert all(isinstance(message, Loading) for message in loading)
    assert 2 <= len(loading) < 30  # of a thousand
    assert loading[-1] == Loading("loading", 1000, 1000)
    submit(process, 5, ANSWER, 8, 9)
    drawn, ended = [message for message in until(process, Ended) if not isinstance(message, Statistics)]
    assert isinstance(drawn, Drawn) and isinstance(ended, Ended)
    assert [draw.token_id for draw in drawn.draws] == [ANSWER, 8, 9]
    assert (ended.request_id, ended.reason) == (5, FinishReason.STOP)
    process.send(Stop())
    assert process.wait(SOON) == 0
    assert process.trouble() is None  # it is for `receive` to say that it ended
    assert lost(process) == "the engine's process has ended with code 0"


def test_a_process_that_has_nothing_to_say_makes_nothing_readable(started: list[EngineProcess]) -> None:
    process = start(started)
    until(process, Statistics)
    assert process.receive(0) is None
    submit(process, 1, ANSWER)
    assert select.select([process.fileno()], [], [], SOON)[0]
    until(process, Ended)


@pytest.mark.parametrize(
    ("model", "error", "is_users_mistake"),
    [("wrong", "there is no model of that name", True), ("large", "out of memory while the weights were read", False)],
)
def test_a_model_that_cannot_be_loaded(
    started: list[EngineProcess], model: str, error: str, is_users_mistake: bool
) -> None:
    process = start(started, model)
    assert until(process, LoadFailed)[-1] == LoadFailed(error, is_users_mistake)
    assert "ended with code 1" in lost(process)


def test_a_mistake_while_loading_is_told(started: list[EngineProcess]) -> None:
    assert "RuntimeError: a mistake in the loader" in lost(start(started, "crash"))


def test_a_crash_of_the_loop_ends_the_process_with_a_message(started: list[EngineProcess]) -> None:
    process = start(started)
    until(process, Ready)
    submit(process, 1, CRASH)
    assert lost(process) == "the engine's process failed: RuntimeError: shapes do not fit"


def test_a_lost_gpu_ends_the_process_with_its_own_sentence_and_another_one_serves(
    started: list[EngineProcess],
) -> None:
    process = start(started)
    until(process, Ready)
    submit(process, 1, LOSE_GPU)
    assert lost(process) == "the GPU failed while it computed"
    second = process.restart()
    started.append(second)
    until(second, Ready)
    submit(second, 2, ANSWER)
    until(second, Ended)


def test_what_is_lost_while_nothing_runs_ends_the_process(started: list[EngineProcess]) -> None:
    process = start(started)
    until(process, Ready)
    submit(process, 1, LOSE_LATER)
    until(process, Ended)
    assert lost(process) == "a stage of another process is gone"


def test_sigkill_is_noticed_at_once_and_another_process_serves(started: list[EngineProcess]) -> None:
    process = start(started)
    until(process, Ready)
    submit(process, 1, ENDLESS)
    until(process, Drawn)
    os.kill(process.pid, signal.SIGKILL)
    began = time.monotonic()
    assert lost(process) == "the engine's process was ended by signal 9"
    assert time.monotonic() - began < 5.0
    second = process.restart()
    started.append(second)
    until(second, Ready)
    assert (process.restarts, second.restarts) == (0, 1)
    submit(second, 2, ANSWER)
    until(second, Ended)


def test_a_process_that_is_stopped_is_in_trouble(started: list[EngineProcess], monkeypatch: pytest.MonkeyPatch) -> None:
    process = start(started)
    until(process, Ready)
    monkeypatch.setattr(client, "SILENT_SECONDS", 2.5)
    os.kill(process.pid, signal.SIGSTOP)
    assert "no sign of life" in lost(process)
    trouble = process.trouble()
    assert trouble is not None
    assert "no sign of life" in trouble


def test_a_step_that_takes_too_long_is_in_trouble(
    started: list[EngineProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    process = start(started)
    until(process, Ready)
    monkeypatch.setattr(client, "STEP_SECONDS", 1.5)
    submit(process, 1, HANG)
    told = lost(process)
    assert "a step of the engine has been running for" in told
    assert told.endswith(" seconds: a window waits for the CPU's answer to request 7")


def test_a_step_is_not_too_long_as_long_as_experts_come_from_a_file(
    started: list[EngineProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    process = start(started)
    until(process, Ready)
    monkeypatch.setattr(client, "STEP_SECONDS", 0.6 * READING_SECONDS)
    submit(process, 1, READ_EXPERTS)
    begin = time.monotonic()
    until(process, Ended)
    assert time.monotonic() - begin > client.STEP_SECONDS


def test_a_long_silence_between_messages_is_no_trouble(
    started: list[EngineProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Idle for longer than the limit on silence: the pulse goes on."""
    process = start(started)
    until(process, Statistics)
    monkeypatch.setattr(client, "SILENT_SECONDS", 2.5)
    deadline = time.monotonic() + 4.0
    while time.monotonic() < deadline:
        assert process.receive(0.5) is None
        assert process.trouble() is None


def test_cancel_and_signals_while_it_works(started: list[EngineProcess]) -> None:
    process = start(started)
    until(process, Ready)
    submit(process, 1, ENDLESS)
    until(process, Drawn)
    process.send(Cancel(1, keep_tokens=4))
    ended = until(process, Ended)[-1]
    assert isinstance(ended, Ended)
    assert (ended.reason, ended.usage.completion_tokens) == (FinishReason.CANCELLED, 4)


def test_statistics_come_while_it_works_and_when_it_goes_idle(started: list[EngineProcess]) -> None:
    process = start(started)
    until(process, Statistics)
    submit(process, 1, ENDLESS)
    begin = time.monotonic()
    first, second = until(process, Statistics)[-1], until(process, Statistics)[-1]
    assert isinstance(first, Statistics) and isinstance(second, Statistics)
    assert 0 < first.windows < second.windows
    assert 0.9 < second.seconds - first.seconds < SOON
    process.send(Cancel(1))
    until(process, Ended)
    last = until(process, Statistics)[-1]
    assert isinstance(last, Statistics)
    assert last.waiting == 0
    assert time.monotonic() - begin < SOON


def test_sending_never_blocks_even_if_nobody_reads(started: list[EngineProcess]) -> None:
    process = start(started)
    until(process, Ready)
    os.kill(process.pid, signal.SIGSTOP)
    begin = time.monotonic()
    for number in range(50):
        process.send(Submit(number, TokenRequest(tuple(range(100_000)), SamplingOptions())))
    assert time.monotonic() - begin < 2.0


def test_nothing_is_lost_where_an_event_loop_made_the_descriptor_non_blocking(started: list[EngineProcess]) -> None:
    process = start(started)
    until(process, Ready)
    os.set_blocking(process.fileno(), False)  # as libuv does
    os.kill(process.pid, signal.SIGSTOP)
    for number in range(200):
        process.send(Submit(number, TokenRequest((ANSWER, *range(4000)), SamplingOptions())))
    time.sleep(0.3)
    os.kill(process.pid, signal.SIGCONT)
    ended = {until(process, Ended)[-1].request_id for _ in range(200)}  # type: ignore[union-attr]
    assert ended == set(range(200))


def test_killing_twice_is_killing_once(started: list[EngineProcess]) -> None:
    process = start(started)
    process.kill()
    process.kill()
    assert process.wait(0) == -signal.SIGKILL


def test_the_process_ends_with_its_parent() -> None:
    """The parent is killed while the engine hangs in a step: nobody is left to stop it but itself."""
    script = f"""
import time
from strata.engine import client
from strata.engine.messages import Load, Ready, Submit
from strata.engine.request import TokenRequest
from strata.sampling.options import SamplingOptions
from strata.settings import EngineSettings
client.MODULE = "tests.engine.fake_process"
process = client.EngineProcess.start(Load(None, EngineSettings()))
while not isinstance(process.receive(), Ready):
    pass
process.send(Submit(1, TokenRequest(({HANG},), SamplingOptions())))
print(process.pid, flush=True)
time.sleep(60)
"""
    with subprocess.Popen([sys.executable, "-c", script], env=ENVIRONMENT, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        time.sleep(0.2)
        parent.kill()
    deadline = time.monotonic() + SOON
    while is_running(pid):
        assert time.monotonic() < deadline, "the process outlives its parent"
        time.sleep(0.02)


def is_running(pid: int) -> bool:
    """Whether there is such a process and it has not ended (a zombie has)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
