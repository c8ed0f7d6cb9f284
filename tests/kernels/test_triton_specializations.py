"""Nothing compiles after the warm-up, whatever the numbers of rows: asked of Triton itself, without a GPU."""

import importlib.util
import json
import os
import subprocess
import sys

import pytest

from strata.kernels.measured import MEASURED


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs Triton: make interpreter")
@pytest.mark.parametrize("device", [*MEASURED, "a GPU without a table"])
def test_every_number_of_rows_uses_a_kernel_of_the_warm_up(device: str) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = os.pathsep.join(path for path in (*sys.path, os.getcwd()) if path)
    command = [sys.executable, "-m", "tests.kernels.specializations", device]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert {"packed_rows_kernel", "expert_matrix_kernel", "quantize_kernel"} <= set(found["warm"])
    of_windows = {"two_matrices_kernel", "route_kernel", "gate_up_hidden_kernel", "all_down_kernel"}
    assert of_windows | {"plan_kernel", "route_and_plan_kernel", "collect_kernel"} <= set(found["warm"])
    assert found["late"] == []
