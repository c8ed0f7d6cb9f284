"""Rank 1 of two, for `test_remote_copy`: a process that answers what it is sent. Started by path; knows no test."""

import socket
import subprocess
import sys
import time
from pathlib import Path

import torch

from strata.engine.remote_copy import DistributedCopy, StagedCopy, open_channels
from strata.engine.remote_joining import join
from strata.engine.remote_line import Hello
from strata.engine.remote_ranks import Ranks

ROOT = Path(__file__).parents[2]
WAYS = ((0, 1), (0, 1), (1, 0), (0, 1), (1, 0))
ROOM_BYTES = 64


def started(module: str, *arguments: object) -> "subprocess.Popen[bytes]":
    """A process of one of the modules here."""
    environment = {"PYTHONPATH": f"{ROOT}/src:{ROOT}", "OMP_NUM_THREADS": "1"}
    return subprocess.Popen([sys.executable, "-m", module, *map(str, arguments)], cwd=ROOT, env=environment)


def free_port() -> int:
    """One that nobody has."""
    with socket.create_server(("127.0.0.1", 0)) as found:
        return found.getsockname()[1]


def main(port: int) -> None:
    """Rows and words come on two ways and go back, twice as large, on a third one; a large tensor goes there and back

    by a small room. Then it waits to be killed.
    """
    joined = join(Ranks(1, 2, 1, "127.0.0.1", port, is_hosted=False), (Hello,), seconds=30)
    *plain, there, home = open_channels(WAYS, by_nccl=False)
    rows, words, back = map(DistributedCopy, plain)
    for count in (3, 1, 2):
        of_rows, of_words = torch.zeros(count, 5), torch.zeros(4, dtype=torch.int32)
        words.receive((of_words,))  # the other way round than they were sent
        rows.receive((of_rows, torch.empty(0, 5)))
        back.before_overwriting()
        back.send((2 * of_rows, 2 * of_words))
    back.before_overwriting()
    large = torch.zeros(100, dtype=torch.int32), torch.zeros(3)
    StagedCopy(there, torch.empty(ROOM_BYTES, dtype=torch.uint8)).receive(large)
    returning = StagedCopy(home, torch.empty(ROOM_BYTES, dtype=torch.uint8))
    returning.send(large)
    returning.before_overwriting()
    joined.lines[0].send(Hello(1, "done"))
    time.sleep(60)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(int(sys.argv[1]))
