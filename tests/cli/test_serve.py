"""`strata serve` and `strata bench serve` as commands: they load only what they need, and say what is missing."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import strata
from strata.cli.app import COMMANDS, run
from strata.cli.exit_codes import EXIT_ENGINE_FAILED, EXIT_USER_MISTAKE

ENVIRONMENT = dict(os.environ, PYTHONPATH=str(Path(strata.__file__).parent.parent))


def test_help_loads_neither_torch_nor_a_web_framework() -> None:
    check = (
        "import sys; from strata.cli.app import run; code = run(['serve', '--help']); "
        "sys.exit(code or any(name in sys.modules for name in ('torch', 'fastapi', 'uvicorn')))"
    )
    assert subprocess.run([sys.executable, "-c", check], capture_output=True, env=ENVIRONMENT).returncode == 0


def test_the_server_itself_loads_no_torch() -> None:
    check = "import sys, strata.server.run; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check], capture_output=True, env=ENVIRONMENT).returncode == 0


def test_a_wrong_setting_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert "serve" in COMMANDS
    assert run(["serve", "--port", "x"]) == EXIT_USER_MISTAKE
    assert capsys.readouterr().err.startswith("error: setting port: 'x'")


def test_a_bench_without_a_server_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    from strata.cli.bench_serve import serve

    assert serve.__doc__
    assert run(["bench", "serve", "http://127.0.0.1:9", "--requests", "1"]) == EXIT_ENGINE_FAILED
    assert "no connection" in capsys.readouterr().err
