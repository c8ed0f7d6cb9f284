"""`make conformance`: every promise of the server that takes minutes to check, and the table of what came out.

`--short`: a minute in all, as CI runs it, without what needs the extra `conformance`. `--old-sdks`: a folder with the
SDKs of a year ago.
"""

import argparse
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from tests.conformance import grammar_run
from tests.conformance.fuzz_api import fuzz_api
from tests.conformance.harness import harness
from tests.conformance.kills import kills
from tests.conformance.load import load
from tests.conformance.overhead import overhead
from tests.conformance.table import Row, as_markdown

ROOT = Path(__file__).resolve().parents[2]


def environment_with(folder: Path | None = None) -> dict[str, str]:
    """Of a process that imports the sources, and first what lies in a folder."""
    paths = [str(ROOT / "src"), str(ROOT)]
    return dict(os.environ, PYTHONPATH=os.pathsep.join([str(folder), *paths] if folder else paths))


def sdks(folder: Path | None) -> Row:
    """The SDKs' own tests, with those of the environment or of a folder."""
    environment = environment_with(folder)
    versions = subprocess.run(
        [sys.executable, "-c", "import anthropic, openai; print(openai.__version__, anthropic.__version__)"],
        capture_output=True, text=True, env=environment,
    ).stdout.split()  # fmt: skip
    name = "SDKs openai {}, anthropic {}".format(*(versions or ("?", "?")))
    return passing(name, "tests/server/test_sdks.py", environment)


def recorded_calls() -> Row:
    """Replies with calls that canitoolcall has recorded, in the dialects that are spoken here, cut in many ways."""
    name = "canitoolcall's recorded calls, whole and in pieces"
    return passing(name, "tests/text/test_canitoolcall.py", environment_with())


def passing(name: str, tests: str, environment: dict[str, str]) -> Row:
    """A file of tests that must all pass."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", tests]
    ran = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=ROOT)
    counted = re.findall(r"(\d+) (passed|failed|error)", ran.stdout) or [(str(ran.stdout.count(".")), "passed")]
    result = ", ".join(f"{count} {what}" for count, what in counted)
    if ran.returncode:
        print(ran.stdout[-4000:], file=sys.stderr)
    return Row(name, "all pass", result, ran.returncode == 0)


def main() -> int:
    """Run the parts that were asked for; 1 if a promise is not kept."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--seconds", type=float, default=300.0, help="of load")
    parser.add_argument("--fuzz-seconds", type=float, default=600.0)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--old-sdks", type=Path)
    parser.add_argument("--only", nargs="*", help="names of parts")
    asked = parser.parse_args()
    short = asked.short
    parts: dict[str, Callable[[], Row]] = {
        "load": lambda: load(10.0 if short else asked.seconds, 40 if short else 200),
        "kills": lambda: kills(2 if short else asked.kills),
        "overhead": overhead,
    }
    if not short:
        parts |= {"sdks": lambda: sdks(None), "calls": recorded_calls, "schemas": grammar_run.row, "harness": harness}
        parts["fuzz"] = lambda: fuzz_api(asked.fuzz_seconds)
        if asked.old_sdks is not None:
            parts["old-sdks"] = lambda: sdks(asked.old_sdks)
    rows: list[Row] = []
    for name, part in parts.items():
        if asked.only is None or name in asked.only:
            print(f"{name} ...", file=sys.stderr, flush=True)
            rows.append(part())
            print(as_markdown(rows[-1:]).splitlines()[-1], file=sys.stderr, flush=True)
    print(as_markdown(rows))
    return 0 if all(row.is_kept for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
