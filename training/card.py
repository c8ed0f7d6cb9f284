"""Writes the shipped model's card: measures the model, keeps the figures in training/card, renders CARD.md.

Knows what a reader of the card should be told and which results were wanted; measures nothing itself. The records
beside metrics.json: history.json, the trainer's log; data.json, what training.prepare said about the data.
Run: python -m training.card (needs build/corpus from training.prepare), or with --render from the records alone.
"""

import argparse
import json
from collections.abc import Mapping
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from strata.models_shipped import default_path
from training.card_text import card
from training.measure import END_OF_TEXT, folder_bytes, measure_all, progress_lines
from training.pictures import draw_routing, draw_training
from training.recipe import STAGES, PocketShape

RECORDS = Path("training/card")
DATA_FACTS = ("manuals", "dictionary", "templates", "packages", "extra_packages", "sha256")
KINDS = {"L": "delta net", "A": "attention"}
TARGETS = {"bits_per_byte": 1.25, "recovered": 0.6, "dictionary": 2.4, "manuals": 1.9, "least_used": 0.2, "mib": 24.0}


def read_json(path: Path) -> Any:
    return json.loads(path.read_text("utf-8"))


def write_json(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", "utf-8")


def keep_data_facts(corpus: Path, model: Path) -> None:
    """Copies what the card tells about the data; refuses a corpus that another tokenizer encoded."""
    facts = read_json(corpus / "meta.json")
    shipped = sha256((model / "tokenizer.json").read_bytes()).hexdigest()
    if facts["sha256"]["tokenizer.json"] != shipped:
        raise SystemExit(f"{corpus} was made with another tokenizer than the shipped one: measure with its own")
    assert facts["special_ids"]["<|endoftext|>"] == END_OF_TEXT
    write_json(RECORDS / "data.json", {name: facts[name] for name in DATA_FACTS})


def ppmd_bits_per_byte(text: Path) -> float | None:
    """The bar: PPMd primed with the five manuals' train text; None without `pyppmd` or the text."""
    if find_spec("pyppmd") is None or not (text / "manuals_train.txt").is_file():
        return None
    from training.ppmd import primed_bits_per_byte

    train, heldout = ((text / f"manuals_{name}.txt").read_bytes() for name in ("train", "heldout"))
    return primed_bits_per_byte(train, heldout)


def measure(model: Path, corpus: Path, text: Path) -> None:
    if not (corpus / "meta.json").is_file():
        raise SystemExit(f"{corpus} holds no training data: run `python -m training.prepare` first (Debian packages)")
    say = progress_lines()
    keep_data_facts(corpus, model)
    metrics = measure_all(model, corpus, text, say)
    say("compressing the held-out text with PPMd")
    found = ppmd_bits_per_byte(text)
    if found is None and (RECORDS / "metrics.json").is_file():
        say("pyppmd or the text is missing: the last figure stays")
        found = read_json(RECORDS / "metrics.json").get("ppmd_bits_per_byte")
    write_json(RECORDS / "metrics.json", metrics | {"ppmd_bits_per_byte": found})


def render(model: Path) -> Mapping[str, Any]:
    """Draws the pictures and writes CARD.md; -> the metrics."""
    metrics, history, data = (read_json(RECORDS / f"{name}.json") for name in ("metrics", "history", "data"))
    bars = {"wanted": TARGETS["bits_per_byte"]}
    if metrics["ppmd_bits_per_byte"] is not None:
        bars["PPMd, order 16, primed with the manuals"] = metrics["ppmd_bits_per_byte"]
    draw_training(model / "training.png", history, {stage.name: stage.length for stage in STAGES}, bars)
    kinds = [f"layer {index + 1}, {KINDS[kind]}" for index, kind in enumerate(PocketShape().layer_kinds)]
    draw_routing(model / "routing.png", metrics["routing"], [*kinds, "draft layer, attention"], TARGETS["least_used"])
    path = model / "CARD.md"
    for _ in range(2):  # the second time with the card's own size in the folder's
        path.write_text(card(metrics, history, data, TARGETS, folder_bytes(model)), "utf-8")
    return metrics


def main() -> None:
    parser = argparse.ArgumentParser(prog="training.card", description=__doc__)
    parser.add_argument("--corpus", type=Path, default=Path("build/corpus"), help="what training.prepare wrote")
    parser.add_argument("--text", type=Path, default=Path("build/corpus_text"), help="the same as text")
    parser.add_argument("--history", type=Path, help="a trainer's history.json, to be kept as the card's from now on")
    parser.add_argument("--render", action="store_true", help="measure nothing, write the card from the records")
    arguments = parser.parse_args()
    model = default_path()
    RECORDS.mkdir(exist_ok=True)
    if arguments.history:
        lines = ",\n".join(json.dumps(entry) for entry in read_json(arguments.history))
        (RECORDS / "history.json").write_text(f"[\n{lines}\n]\n", "utf-8")
    if not arguments.render:
        measure(model, arguments.corpus, arguments.text)
    render(model)
    print(f"wrote {model / 'CARD.md'}, its pictures and {RECORDS / 'metrics.json'}")


if __name__ == "__main__":
    main()
