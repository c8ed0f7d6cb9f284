"""Knows how well PPMd of order 16, primed with the train text, compresses the held-out text: the bar for the model.
Does not know tokens or the model. Needs the package `pyppmd`. Run: python -m training.ppmd --text build/corpus_text
"""

import argparse
from pathlib import Path

import pyppmd

ORDER = 16
MEMORY_BYTES = 2_000 * 2**20  # large enough that the model of 29 MB of text is never restarted


def primed_bits_per_byte(train: bytes, heldout: bytes, order: int = ORDER, memory_bytes: int = MEMORY_BYTES) -> float:
    """(compressed(train + heldout) - compressed(train)) * 8 / len(heldout), for PPMd variant H.

    One pass: the encoder's output is counted before and after the held-out text (exact to the coder's few bytes).
    """
    encoder = pyppmd.Ppmd7Encoder(order, memory_bytes)
    train_bytes = len(encoder.encode(train))
    heldout_bytes = len(encoder.encode(heldout)) + len(encoder.flush())
    print(f"train {len(train)} -> {train_bytes} bytes, held out {len(heldout)} -> {heldout_bytes} bytes")
    return heldout_bytes * 8 / len(heldout)


def main() -> None:
    parser = argparse.ArgumentParser(prog="training.ppmd", description="PPMd's bits per byte on the held-out manuals")
    parser.add_argument(
        "--text", type=Path, default=Path("build/corpus_text"), help="folder that training.prepare wrote"
    )
    folder: Path = parser.parse_args().text
    train, heldout = ((folder / f"manuals_{name}.txt").read_bytes() for name in ("train", "heldout"))
    print(f"PPMd order {ORDER}, primed: {primed_bits_per_byte(train, heldout):.4f} bits per byte")


if __name__ == "__main__":
    main()
