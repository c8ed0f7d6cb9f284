"""The sampler's kernels compile for a GPU, and the compiler joins no product with a sum: asked without a GPU."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs Triton: make interpreter")
def test_every_kernel_compiles_and_rounds_each_operation(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = os.pathsep.join(path for path in (*sys.path, os.getcwd()) if path)
    environment["TRITON_CACHE_DIR"] = str(tmp_path)
    command = [sys.executable, "-m", "tests.kernels.sampler_compilation"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["fused"] == dict.fromkeys(found["kernels"], 0)
    assert len(found["kernels"]) == 7
