"""What every test shares: one thread a process, no settings of the user, no card, a tiny model of random weights.

One thread, so that two pytest workers fit two cores and a result does not depend on how many there are. No card, so
that `device = auto` means the same everywhere: what a card does is asked by the commands in tests/gpu.
"""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

torch.set_num_threads(1)
for _name in [name for name in os.environ if name.startswith("STRATA_")]:
    del os.environ[_name]
os.environ["STRATA_THREADS"] = "1"
os.environ["CUDA_VISIBLE_DEVICES"] = ""
os.environ["XDG_CONFIG_HOME"] = os.devnull


@pytest.fixture(autouse=True)
def one_thread() -> None:
    """Also behind a test whose engine took more: torch's threads are the process's, and wait by spinning."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A qwen4_exp directory of random weights in several shards, with the shipped tokenizer; not to be changed."""
    from strata.cli.synth import synth

    directory = tmp_path_factory.mktemp("models") / "tiny"
    synth("qwen4_exp", directory, fields=["vocab_size=8192"], shard_mib=1)
    return directory


@pytest.fixture
def broken_model(tiny_model: Path, tmp_path: Path) -> Path:
    """A copy of the tiny model that a test may break."""
    return Path(shutil.copytree(tiny_model, tmp_path / "model"))


@pytest.fixture
def library_products() -> Iterator[None]:
    """The torch road multiplies by the C++ library: the definition's bits in a twentieth of its time."""
    from tests.library_products import multiplied_by_library

    with multiplied_by_library():
        yield
