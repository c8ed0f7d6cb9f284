"""Nothing compiles after the warm-up of chunks, whatever their rows and positions: asked of Triton, without a GPU."""

import importlib.util
import json
import os
import subprocess
import sys

import pytest


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs Triton: make interpreter")
def test_every_chunk_uses_a_kernel_of_the_warm_up() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = os.pathsep.join(path for path in (*sys.path, os.getcwd()) if path)
    command = [sys.executable, "-m", "tests.kernels.chunk_specializations", "qwen4_exp"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert {"add_norm_kernel", "read_products_kernel", "read_experts_kernel", "rule_kernel"} <= set(found["warm"])
    assert found["late"] == []
