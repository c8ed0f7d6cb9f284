"""`python -m tests.fuzz`: many broken files in bounded time, under limits on memory and on the time of each file.

Prints the number of cases; a failure prints the case's number and seed, with which it can be repeated.
"""

import argparse
import resource
import signal
import sys
import time
import traceback
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.fuzz.cases import broken_case, subjects, try_case

_SECONDS_A_CASE = 10
_SPARE_ADDRESSES = 1 << 30  # beyond what the program has once its files are made


def main() -> int:
    """Run cases until the count or the time is reached; 0 if every one ended well."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--cases", type=int, default=20_000)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, help="repeat one case")
    wanted = parser.parse_args()
    subjects()
    _limit_memory()
    signal.signal(signal.SIGALRM, _too_long)
    numbers = range(wanted.cases) if wanted.only is None else [wanted.only]
    began, done, refused = time.monotonic(), 0, 0
    with TemporaryDirectory(prefix="strata-fuzz-") as folder:
        for number in numbers:
            subject, data = broken_case(number, wanted.seed)
            signal.alarm(_SECONDS_A_CASE)
            try:
                refused += try_case(subject, data, Path(folder))
            except BaseException:
                traceback.print_exc()
                print(f"case {number} of seed {wanted.seed} ({subject.name}): --seed {wanted.seed} --only {number}")
                return 1
            finally:
                signal.alarm(0)
            done += 1
            if time.monotonic() - began > wanted.seconds:
                break
    print(f"{done:,} broken files in {time.monotonic() - began:.1f} s: {refused:,} refused, the others still readable")
    return 0


def _limit_memory() -> None:
    """A reader that believes a count of 2^60 then fails at once instead of filling this PC."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + _SPARE_ADDRESSES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def _too_long(*_: Any) -> None:
    raise TimeoutError(f"a file kept its reader busy for {_SECONDS_A_CASE} s")


if __name__ == "__main__":
    sys.exit(main())
