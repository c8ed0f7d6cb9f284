"""`strata generate`: the reply on stdout, one line of statistics on stderr, exit codes, Ctrl-C."""

import io
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from strata.cli.app import run
from tests.house.source_tree import ROOT

QUESTION = "What does harbour mean?"


@pytest.fixture
def model(tiny_model: Path) -> list[str]:
    return ["--model", str(tiny_model)]


def pipe(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))


def test_reply_goes_to_stdout_and_one_line_to_stderr(model: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["generate", QUESTION, *model, "--max-tokens", "8"]) == 0
    first = capsys.readouterr()
    assert run(["generate", QUESTION, *model, "--max-tokens", "8"]) == 0
    assert capsys.readouterr().out == first.out != ""
    assert first.out.endswith("\n")
    (line,) = first.err.splitlines()
    assert "prompt tokens" in line
    assert "8 tokens at" in line
    assert "ended by length" in line


def test_quiet_leaves_stderr_empty(model: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["generate", QUESTION, *model, "--max-tokens", "3", "--quiet"]) == 0
    assert capsys.readouterr().err == ""


def test_drawn_reply_names_its_seed(model: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["generate", QUESTION, *model, "--max-tokens", "8", "--temperature", "1"]) == 0
    first = capsys.readouterr()
    seed = first.err.split("seed ")[1].split(",")[0].strip()
    assert run(["generate", QUESTION, *model, "--max-tokens", "8", "--temperature", "1", "--seed", seed]) == 0
    assert capsys.readouterr().out == first.out


def test_drafts_are_counted_and_change_nothing(model: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["generate", QUESTION, *model, "--max-tokens", "8"]) == 0
    plain = capsys.readouterr()
    assert run(["generate", QUESTION, *model, "--max-tokens", "8", "--drafts", "2"]) == 0
    drafting = capsys.readouterr()
    assert drafting.out == plain.out
    assert "drafts accepted" in drafting.err


def test_raw_continues_text_and_differs_from_an_answer(model: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["generate", QUESTION, *model, "--max-tokens", "8", "--raw"]) == 0
    raw = capsys.readouterr()
    assert run(["generate", QUESTION, *model, "--max-tokens", "8"]) == 0
    answer = capsys.readouterr()
    prompt_tokens = [int(text.err.split()[0]) for text in (raw, answer)]
    assert prompt_tokens[0] < prompt_tokens[1]  # the template adds its own


def test_prompt_from_stdin_is_the_prompt(
    model: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(["generate", QUESTION, *model, "--max-tokens", "4"]) == 0
    expected = capsys.readouterr().out
    pipe(monkeypatch, QUESTION.encode() + b"\n")
    assert run(["generate", "-", *model, "--max-tokens", "4"]) == 0
    assert capsys.readouterr().out == expected


def test_prompt_from_a_file_is_the_prompt_and_a_long_one_is_told_of(
    model: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert run(["generate", QUESTION, *model, "--max-tokens", "4"]) == 0
    expected = capsys.readouterr().out
    file = tmp_path / "long.txt"
    file.write_text(QUESTION + "\n")
    assert run(["generate", "--file", str(file), *model, "--max-tokens", "4"]) == 0
    said = capsys.readouterr()
    assert said.out == expected
    assert len(said.err.splitlines()) == 1
    file.write_text("A harbour is a place where ships lie. " * 120)
    assert run(["generate", "--file", str(file), *model, "--max-tokens", "2", "--raw"]) == 0
    begun, read, statistics = capsys.readouterr().err.splitlines()
    tokens = int(statistics.split()[0])
    assert begun == f"reading the prompt: {tokens:,} tokens"
    assert read.startswith(f"read {tokens:,} tokens in ")


@pytest.mark.parametrize(("arguments", "words"), [(["hi", "--file", "x"], "given twice"), ([], "there is no PROMPT")])
def test_a_prompt_is_given_once(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["generate", *arguments]) == 2
    assert words in capsys.readouterr().err


def test_stop_string_ends_the_reply(model: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["generate", QUESTION, *model, "--max-tokens", "8"]) == 0
    text = capsys.readouterr().out
    stop = text.split()[2]
    assert run(["generate", QUESTION, *model, "--max-tokens", "8", "--stop", stop, "--stop", "never seen"]) == 0
    stopped = capsys.readouterr()
    assert stopped.out.rstrip("\n") == text[: text.index(stop)].rstrip("\n")
    assert "ended by" not in stopped.err


def test_settings_come_from_the_environment(
    model: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STRATA_MAX_TOKENS", "3")
    assert run(["generate", QUESTION, *model]) == 0
    assert "3 tokens at" in capsys.readouterr().err


def start(*arguments: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "strata", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT / "src",
    )


def test_ctrl_c_ends_the_reply_cleanly_with_130(model: list[str]) -> None:
    process = start("generate", QUESTION, *model, "--max-tokens", "3000", "--drafts", "0")
    assert process.stdout is not None
    first = process.stdout.read(1)
    process.send_signal(signal.SIGINT)
    rest, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert (first + rest).endswith("\n")
    assert "ended by cancelled" in errors
    assert "Traceback" not in errors


def test_reader_that_leaves_ends_the_command_quietly(model: list[str]) -> None:
    process = start("generate", QUESTION, *model, "--max-tokens", "3000")
    assert process.stdout is not None
    process.stdout.read(1)
    process.stdout.close()
    assert process.stderr is not None
    errors = process.stderr.read()
    assert process.wait(60) == 0
    assert "Traceback" not in errors


def test_reader_of_a_table_that_leaves_is_no_failure(model: list[str]) -> None:
    process = start("inspect", model[1])
    assert process.stdout is not None
    process.stdout.close()
    assert process.wait(60) == 0


def test_closed_stdout_is_refused() -> None:
    command = f"'{sys.executable}' -m strata serve >&-"  # the first of all checks, of every command
    done = subprocess.run(command, shell=True, stderr=subprocess.PIPE, text=True, cwd=ROOT / "src")
    assert (done.returncode, done.stderr) == (2, "error: standard output is closed: there is nowhere to write to\n")


def test_ctrl_c_while_the_model_loads_is_130(model: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("strata.cli.generate.Engine", interrupt)
    assert run(["generate", QUESTION, *model]) == 130


@pytest.mark.parametrize("command", ["generate", "convert", "serve"])
def test_ctrl_c_while_modules_load_is_130_without_a_word(tmp_path: Path, command: str) -> None:
    swallows = "import signal\ntry:\n    signal.raise_signal(signal.SIGINT)\nexcept KeyboardInterrupt:\n    pass\n"
    (tmp_path / "cyclopts.py").write_text(swallows)
    environment = dict(os.environ, PYTHONPATH=f"{tmp_path}:{ROOT / 'src'}")
    done = subprocess.run(
        [sys.executable, "-m", "strata", command, QUESTION],
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        cwd=tmp_path,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a test run in the background ignores it
    )
    assert (done.returncode, done.stderr) == (130, "")


def test_full_disk_is_an_error_and_a_closed_stderr_is_none(model: list[str]) -> None:
    command = [sys.executable, "-m", "strata", "generate", QUESTION, *model, "--max-tokens", "3"]
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, cwd=ROOT / "src")
    assert done.returncode == 1
    assert "No space left" in done.stderr
    assert "Traceback" not in done.stderr
    quoted = " ".join(f"'{word}'" for word in command)
    done = subprocess.run(f"{quoted} 2>&-", shell=True, stdout=subprocess.PIPE, text=True, cwd=ROOT / "src")
    assert done.returncode == 0
    assert "prompt tokens" not in done.stdout


def test_terminal_without_unicode_ends_no_reply(model: list[str]) -> None:
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    code = "from strata.cli import app, console; app.run = lambda _: console.write_reply('snow \u2603'); app.main()"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT / "src", env=environment, capture_output=True, text=True
    )
    assert (done.stdout, done.stderr, done.returncode) == ("snow \\u2603", "", 0)


def test_help_is_fast_and_loads_no_torch() -> None:
    code = "import sys; from strata.cli.app import run; run(['--help']); sys.exit('torch' in sys.modules)"
    started = time.monotonic()
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT / "src", capture_output=True, text=True)
    assert done.returncode == 0
    assert "generate" in done.stdout
    assert time.monotonic() - started < 5  # 0.3 s alone; a loaded machine may take longer


def test_version_is_the_packages(capsys: pytest.CaptureFixture[str]) -> None:
    import strata

    assert run(["--version"]) == 0
    assert capsys.readouterr().out.strip() == strata.__version__
