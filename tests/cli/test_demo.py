"""`make demo QUESTION=...` hands the question over as it was typed."""

import subprocess
from pathlib import Path

import pytest

from tests.house.source_tree import ROOT


@pytest.mark.parametrize("question", ['what does "x" mean?', "it's $5, $(shell echo no) or `false` # not \\ less", ""])
def test_a_question_reaches_the_command_letter_for_letter(tmp_path: Path, question: str) -> None:
    command = tmp_path / "bin" / "strata"
    command.parent.mkdir()
    command.write_text("#!/bin/sh\nprintf '%s|' \"$@\"\n")
    command.chmod(0o755)
    stamp = tmp_path / ".ready"
    stamp.touch()
    made = subprocess.run(
        ["make", "-s", "-o", str(stamp), "demo", f"VENV={tmp_path}", f"QUESTION={question}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert (made.returncode, made.stdout) == (0, f"generate|{question}|"), made.stderr
