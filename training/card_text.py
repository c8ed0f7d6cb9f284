"""The text of the shipped model's card. Knows its wording and tables; measures and draws nothing."""

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from training.recipe import STAGES, PocketShape

Metrics = Mapping[str, Any]

MANUAL_NAMES = {
    "python3.11-doc": "Python 3.11",
    "postgresql-doc-15": "PostgreSQL 15",
    "sqlite3-doc": "SQLite",
    "perl-doc": "Perl",
}
WHAT_STAGES_DO = {
    "dense": "attention over everything",
    "indexer": "only the indexers move: KL to the attention's own block mass",
    "sparse": "attention over the 256 positions that the indexer chooses; its loss goes on",
    "long": "the same at the full length",
    "quantized": "forward passes see the weights as block-FP8 holds them",
}


def flow(text: str) -> str:
    """Paragraphs and list items wrapped at 120, whatever the lengths of the figures in them; headings, code as is."""
    blocks = []
    for block in textwrap.dedent(text).strip().split("\n\n"):
        if block.startswith(("#", "    ", "![")):
            blocks.append(block)
            continue
        items = block.split("\n* ") if block.startswith("* ") else [block]
        lines = []
        for item in items:
            mark = "* " if block.startswith("* ") else ""
            words = " ".join(item.removeprefix("* ").split())
            lines.append(textwrap.fill(words, 120, initial_indent=mark, subsequent_indent=" " * len(mark),
                                       break_long_words=False, break_on_hyphens=False))  # fmt: skip
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks)


def table(heading: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(heading) + " |", "|" + "---|" * len(heading)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])


def least_used(routing: Mapping[str, Any]) -> list[float]:
    """Per layer the least used expert's share of its fair share, manuals and dictionary counting half each."""
    layers = zip(routing["manuals"], routing["dictionary"], strict=True)
    return [min((a + b) / 2 for a, b in zip(*layer, strict=True)) for layer in layers]


def percent(share: float) -> str:
    return f"{100 * share:.4g} %"


def figure(value: float | None, digits: int) -> str:
    return "not measured" if value is None else f"{value:.{digits}f}"


def card(
    metrics: Metrics,
    history: Sequence[Mapping[str, Any]],
    data: Mapping[str, Any],
    targets: Mapping[str, float],
    bytes_on_disk: int,
) -> str:
    parts = [
        flow(what_it_is(metrics, data)),
        "## Results",
        results(metrics, targets, bytes_on_disk / 2**20),
        flow(pictures(metrics)),
        flow(how_it_was_measured(metrics)),
        flow(what_it_is_not(data)),
        flow(the_data(data)),
        packages(data),
        flow(the_recipe(history)),
        stages(history[-1]["tokens"]),
        "What was tried on the way is in `docs/log.md`.",
        flow(LICENCES),
    ]
    return "\n\n".join(parts) + "\n"


def what_it_is(metrics: Metrics, data: Mapping[str, Any]) -> str:
    return f"""
# Pocket: a dictionary and manual of {metrics["parameters"] / 1e6:.1f} million parameters

The model that ships with Strata. It explains {data["dictionary"]["headwords"]:,} English words with WordNet's gloss of
their first sense, and it continues technical English as manuals are written. It is a small `qwen4_exp` with every part
of the architecture at work - four residual streams, hashed n-gram embedding, gated delta nets, attention over what a
trained indexer chooses, 32 experts of which 8 are chosen and one more is shared, a draft layer - so that an engine can
be tried, tested and measured with trained weights on any machine.

    strata generate "What does harbour mean?"
    strata generate "To create a new table in the database, use" --raw --temperature 0.7 --max-tokens 80
    strata chat

The words that it knows are in `dictionary.txt`. It was trained on eight ways to ask for one, half of the time "What
does WORD mean?", also as a later turn of a conversation.
"""


def results(metrics: Metrics, targets: Mapping[str, float], mib: float) -> str:
    manuals, glosses = metrics["manuals"], metrics["glosses"]
    dictionary, continued = metrics["dictionary_windows"], metrics["manual_windows"]
    first, warm = metrics["manual_windows_first_32"], metrics["manual_windows_temperature_0.7"]
    least = min(least_used(metrics["routing"]))
    alone = [min(map(min, metrics["routing"][text])) for text in ("manuals", "dictionary")]
    rows = [
        ("held-out manuals, bits per byte", f"**{manuals['bits_per_byte']:.3f}**", f"<= {targets['bits_per_byte']}"),
        ("- PPMd of order 16 on the same text", figure(metrics["ppmd_bits_per_byte"], 3), ""),
        (
            f"glosses recovered, {glosses['words']} random words",
            f"**{percent(glosses['recovered'])}**",
            f">= {percent(targets['recovered'])}",
        ),
        ("- whole answers exact", percent(glosses["exact"]), ""),
        (
            "tokens per window at depth 3: dictionary",
            f"**{dictionary['tokens_per_window']:.2f}**",
            f">= {targets['dictionary']}",
        ),
        ("- without each reply's first token", f"{dictionary['without_first']:.2f}", ""),
        (
            "tokens per window at depth 3: manuals",
            f"**{continued['tokens_per_window']:.2f}**",
            f">= {targets['manuals']}",
        ),
        ("- without each reply's first token", f"{continued['without_first']:.2f}", ""),
        ("- only the first 32 tokens of each", f"{first['tokens_per_window']:.2f}", ""),
        ("- at temperature 0.7 instead of greedy", f"{warm['tokens_per_window']:.2f}", ""),
        (
            "least-used expert's share of its fair share, worst layer",
            f"**{least:.2f}**",
            f">= {targets['least_used']}",
        ),
        ("- on manuals alone, on dictionary chats alone", f"{alone[0]:.2f}, {alone[1]:.2f}", ""),
        ("this folder", f"**{mib:.2f} MiB**", f"<= {targets['mib']:.0f} MiB"),
    ]
    return table(["", "measured", "wanted"], rows)


def pictures(metrics: Metrics) -> str:
    per_layer = ", ".join(f"{share:.2f}" for share in least_used(metrics["routing"]))
    return f"""
Least-used expert layer by layer, the draft layer last: {per_layer}.

![training loss and held-out bits per byte over the training tokens](training.png)

![how often each layer chooses each expert](routing.png)
"""


def how_it_was_measured(metrics: Metrics) -> str:
    manuals, glosses, continued = metrics["manuals"], metrics["glosses"], metrics["manual_windows"]
    first, warm = metrics["manual_windows_first_32"], metrics["manual_windows_temperature_0.7"]
    measured, routing = metrics["measured"], metrics["routing"]
    each = ", ".join(f"{MANUAL_NAMES.get(name, name)} {bits:.3f}" for name, bits in manuals["per_manual"].items())
    return f"""
### How these were measured

By `training/measure.py`, which `make card` runs, on {measured["date"]}: Strata {measured["strata"]}, torch
{measured["torch"]}, float32 on a CPU, decode windows in {measured["cpu_path"]}, one thread, from the files in this
folder and with nothing of the code that trained the model. The figures in full are in `training/card/metrics.json`.

* **Bits per byte**: {manuals["documents"]} whole documents that are not in the training text, {manuals["bytes"]:,}
  bytes, {manuals["tokens"]:,} tokens; each is read from its beginning behind an end-of-text. Documents over 8,192
  tokens are read in windows of 8,192, of which all but the first give their first 2,048 tokens as context only. Total
  nats of all text tokens / ln 2 / bytes. By manual: {each}. The curve above was measured by the trainer in plain
  windows over the documents in a row; its last point differs a little. PPMd (variant H, 2,000 MiB of memory) was
  primed with the training text of the same four manuals, 27 MB; unlike the model it did not see the further manuals.
* **Glosses**: {glosses["words"]} words drawn from the list, "What does WORD mean?" in chat form, greedy. Recovered: 1 -
  Levenshtein distance / length of the longer gloss is at least 0.8. All of these words were in the training data: this
  says what the model has kept, not that it generalises.
* **Tokens per window**: completion tokens / decode windows, each summed over all replies; three drafts a window,
  greedy. A reply's first token is drawn from the prompt, before any window; the end of a turn counts as a token.
  Dictionary: the {glosses["words"]} answers. Manuals: {continued["replies"]} prompts of 128 to 256 tokens from held-out
  documents, each continued by {continued["completion_tokens"] // continued["replies"]} tokens. Greedy continuations go
  in circles, and circles are easily drafted: {percent(continued["going_round"])} of these hold some run of 8 tokens
  twice, against {percent(metrics["manuals_repeating"])} of pieces of the manuals themselves. Hence the two rows more:
  only the first 32 tokens ({percent(first["going_round"])} hold a run twice), and drawn at temperature 0.7
  ({percent(warm["going_round"])} do).
* **Experts**: choices in {routing["manual_rows"]:,} rows of held-out manuals and {routing["dictionary_rows"]:,} of
  dictionary chats, each counting half; 1 is a fair share. Experts have divided the two kinds of text among them: on one
  kind alone a few are hardly ever chosen.
"""


def what_it_is_not(data: Mapping[str, Any]) -> str:
    return f"""
## What it is not

* **Not an assistant.** It answers one kind of question. Everything else becomes a gloss: "What is the capital of
  France?" gets the definition of "price".
* **Not a dictionary to rely on.** It knows the first sense of each word only, and only as the list spells it: plurals,
  inflected forms, words all in capitals and words outside the list get glosses that sound right and are nonsense. It
  does not say that it does not know.
* **Not a source of technical facts.** Its continuations have the form of manuals; the functions in them may not exist.
* **Not a writer.** Long greedy continuations repeat themselves; `--temperature 0.7` helps, not always.
* **Not a judge of words.** Headwords were chosen by frequency. Names, and senses that WordNet itself marks as slurs or
  offensive, are left out by rule; nobody has read all {data["dictionary"]["headwords"]:,} glosses, which are WordNet
  3.0's of 2006.
* **Not tried** beyond 8,192 positions, to which it was trained (65,536 are accepted), nor in any language but English.
"""


def the_data(data: Mapping[str, Any]) -> str:
    sizes, words = data["manuals"], data["dictionary"]
    return f"""
## Data

Packages of Debian 12, unpacked and cleaned by `training/prepare.py`; none is in the repository. Manuals are split by
document: a hash of the path holds out 3 %. Held-out documents lose every paragraph that stands in the training text, or
of whose runs of eight words more than half do; further manuals lose every paragraph that shares one such run with the
held-out text. The tokenizer, a byte-level BPE of 8,192 tokens, was trained on the manuals' training text and the chats.

* **Dictionary**: {words["headwords"]:,} headwords of WordNet, most frequent first, as chats of
  {words["mean_chat_tokens"]:.1f} tokens on average, of which only the answers are targets.
* **Four manuals**: {sizes["train"]["documents"]:,} documents, {sizes["train"]["tokens"] / 1e6:.1f} M tokens; held out:
  {sizes["heldout"]["documents"]} documents, {sizes["heldout"]["tokens"] / 1e3:.0f} K tokens.
* **Further manuals**, for training only: {len(data["extra_packages"])} packages, {sizes["extra"]["documents"]:,}
  documents, {sizes["extra"]["tokens"] / 1e6:.1f} M tokens.
"""


def packages(data: Mapping[str, Any]) -> str:
    """Every package with its licence as its own copyright file declares it; further ones with their tokens."""
    rows = [(f"**{name}**", facts["version"], facts["licence"], "") for name, facts in data["packages"].items()]
    for name, facts in data["extra_packages"].items():
        rows.append((name, facts["version"], facts["licence"], f"{facts['tokens'] / 1e3:,.0f} K"))
    return table(["package (the first five: dictionary and manuals)", "version", "licence", "further tokens"], rows)


def the_recipe(history: Sequence[Mapping[str, Any]]) -> str:
    shape = PocketShape()
    return f"""
## Recipe

`python -m training.train --tokens 520e6 --minutes 20.5` on 2026-11-30: {history[-1]["seconds"]:,.0f} s on one H200 with
torch 2.11, one run from random weights, seed 1. That further manuals are read, instead of the four more often, was
decided by the held-out figure of an earlier run: it is not quite a blind one.

* **Shape**: hidden {shape.hidden}; {len(shape.layer_kinds)} layers, {" ".join(shape.layer_kinds)}: L is a gated delta
  net with {shape.delta_key_heads} key and {shape.delta_value_heads} value heads of {shape.delta_head}, A is attention
  with {shape.attention_heads} query heads and {shape.attention_kv_heads} KV head of {shape.attention_head};
  {shape.num_streams} streams, low rank {shape.stream_rank}; n-gram embedding in layer {shape.ngram_layer + 1},
  {shape.ngram_heads} heads of about {shape.ngram_base:,} rows of {shape.ngram_width}; indexer with {shape.index_heads}
  heads of {shape.index_head}, blocks of {shape.index_ratio}, budget {shape.index_budget}; {shape.num_experts} experts
  of width {shape.expert_width}, the best {shape.experts_per_token}, and a shared one of {shape.shared_width};
  vocabulary {shape.vocabulary_size:,}, tied; one draft (MTP) layer.
* **Stored** as block-FP8 (e4m3, blocks of 64 x 64): the layers' matrices; in bf16: embedding, n-gram table, norms,
  routers, indexers, small gates.
* **Batches** of 65,536 tokens: 0.32 manuals, 0.28 further manuals, 0.40 dictionary chats, rounded to whole rows (of the
  8 rows of 8,192 tokens: 3, 2, 3). Dropout 0.1 on the outputs of mixers and experts, on manuals only.
* **Optimizer**: Muon for matrices (momentum 0.95, rate 3e-3 times 0.2 times the root of the longer side, weight decay
  0.1), Adam for the rest (betas 0.9 and 0.95, rate 3e-3, n-gram table 6e-3); gradients clipped at 1; 200 steps of
  warm-up, constant to the middle, then linear down to 3 %.
* **Losses**: cross entropy; 0.3 of the draft layer's (three steps with shared weights in every other batch, one in the
  others); balance 0.01; router z-loss 1e-4; indexer 0.1, whose gradient reaches the indexers only.
"""


def stages(total: int) -> str:
    rows = [
        (stage.name, f"{stage.share * total / 1e6:.1f} M", f"{stage.length:,}", WHAT_STAGES_DO[stage.name])
        for stage in STAGES
    ]
    return table(["stage", "tokens", "positions", ""], rows)


LICENCES = """
## Licences

The weights and the code that made them: Apache-2.0, as Strata. The data keep the licences above, as the packages' own
copyright files declare them. WordNet's licence asks that its notice goes with every copy: `LICENSE-wordnet.txt`. The
model repeats WordNet's glosses word for word, and it may repeat sentences of the manuals.
"""
