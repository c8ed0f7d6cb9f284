"""Draws the card's two pictures: how training went, and which experts are used.

Knows the trainer's log and the measured routing; computes nothing new. Needs matplotlib.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes

INK, QUIET = "#22303c", "#8a97a3"
BLUE, ORANGE = "#2f6f9f", "#d98032"
BANDS = ("#f2f5f8", "#dde5ec")
STYLE: Any = {
    "font.size": 9,
    "font.family": "DejaVu Sans",
    "axes.edgecolor": QUIET,
    "axes.labelcolor": INK,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
}

History = Sequence[Mapping[str, Any]]
Stage = tuple[str, float, float]  # name, first and last token in millions


def stages_of(history: History) -> list[Stage]:
    """Where each stage begins and ends, in millions of tokens."""
    spans: list[Stage] = []
    for entry in history:
        millions = entry["tokens"] / 1e6
        if spans and spans[-1][0] == entry["stage"]:
            spans[-1] = (spans[-1][0], spans[-1][1], millions)
        else:
            spans.append((entry["stage"], spans[-1][2] if spans else 0.0, millions))
    return spans


def _draw_stages(axes: Axes, stages: Sequence[Stage], lengths: Mapping[str, int], named: bool) -> None:
    for index, (name, first, last) in enumerate(stages):
        axes.axvspan(first, last, color=BANDS[index % 2], lw=0, zorder=0)
        if not named:
            continue
        if last - first > 80:
            place, label, turn = (first + last) / 2, f"{name}\n{lengths[name]:,} positions", 0
        else:
            place, label, turn = (first + last) / 2, f"{name}, {lengths[name]:,}", 90
        axes.text(
            place, 0.96, label, transform=axes.get_xaxis_transform(), rotation=turn,
            fontsize=8, color=INK, ha="center", va="top", linespacing=1.3,
        )  # fmt: skip


def draw_training(path: Path, history: History, lengths: Mapping[str, int], bars: Mapping[str, float]) -> None:
    """Training loss over tokens, held-out bits per byte below it; `bars` are horizontal lines of the lower panel."""
    millions = [entry["tokens"] / 1e6 for entry in history]
    stages = stages_of(history)
    measured = [entry for entry in history if "bits_per_byte" in entry]
    with plt.rc_context(STYLE):
        figure, (loss, bits) = plt.subplots(2, 1, figsize=(7.6, 5.4), sharex=True, height_ratios=(1, 1.15))
        for axes in (loss, bits):
            _draw_stages(axes, stages, lengths, named=axes is loss)
            axes.grid(axis="y", color="white", lw=1)
            axes.set_axisbelow(True)
            axes.margins(x=0)
        loss.plot(millions, [entry["loss"] for entry in history], color=BLUE, lw=1.4, label="next token")
        drafts = [entry["drafts"][0] for entry in history]
        loss.plot(millions, drafts, color=ORANGE, lw=1.1, label="draft layer, first step")
        loss.set_ylim(0.8, 5)
        loss.set_ylabel("training loss, nats a token")
        loss.legend(frameon=False, loc="center", bbox_to_anchor=(0.31, 0.62), fontsize=8)
        for name, level in bars.items():
            bits.axhline(level, color=QUIET, lw=1, ls=(0, (4, 3)))
            bits.text(millions[-1] - 4, level + 0.006, f"{name}: {level:.3g}", ha="right", fontsize=8, color=INK)
        bits.plot(
            [entry["tokens"] / 1e6 for entry in measured], [entry["bits_per_byte"] for entry in measured],
            color=BLUE, lw=1.4, marker="o", ms=3.2, label="this model, in contexts of the stage's length",
        )  # fmt: skip
        last = measured[-1]
        bits.annotate(
            f"{last['bits_per_byte']:.3f}", (last["tokens"] / 1e6, last["bits_per_byte"]), (-2, -14),
            textcoords="offset points", ha="right", color=BLUE, fontsize=9, fontweight="bold",
        )  # fmt: skip
        bits.set_ylim(0.88, 1.44)
        bits.set_ylabel("held-out manuals, bits a byte")
        bits.set_xlabel("training tokens, millions")
        bits.set_xlim(0, millions[-1])
        bits.legend(frameon=False, loc="center right", fontsize=8)
        figure.align_ylabels()
        figure.tight_layout()
        figure.savefig(path, dpi=100, pil_kwargs={"optimize": True})
        plt.close(figure)


def draw_routing(path: Path, routing: Mapping[str, Any], kinds: Sequence[str], target: float) -> None:
    """For each layer the experts by how often they are chosen, half manuals and half dictionary chats."""
    manuals, dictionary = np.array(routing["manuals"]) / 2, np.array(routing["dictionary"]) / 2
    with plt.rc_context(STYLE):
        figure, grid = plt.subplots(2, 4, figsize=(9.2, 4.4), sharex=True, sharey=True)
        for layer, (axes, kind) in enumerate(zip(grid.flat, kinds, strict=False)):
            order = np.argsort(-(manuals[layer] + dictionary[layer]), kind="stable")
            experts = np.arange(len(order))
            axes.bar(experts, manuals[layer][order], width=0.86, color=BLUE, label="on manuals")
            axes.bar(
                experts, dictionary[layer][order], width=0.86, color=ORANGE, bottom=manuals[layer][order],
                label="on dictionary chats",
            )  # fmt: skip
            axes.axhline(1, color=INK, lw=0.9, label="fair share")
            axes.axhline(target, color=INK, lw=0.9, ls=(0, (2, 2)), label=f"least share wanted: {target}")
            least = (manuals[layer] + dictionary[layer]).min()
            axes.set_title(kind)
            axes.text(
                0.97, 0.94, f"least used: {least:.2f}", transform=axes.transAxes, ha="right", va="top", fontsize=8
            )
            axes.set_xticks([])
            axes.set_xlim(-0.8, len(order) - 0.2)
        last = grid.flat[-1]
        last.axis("off")
        handles, labels = grid.flat[0].get_legend_handles_labels()
        last.legend(handles, labels, frameon=False, loc="center left", bbox_to_anchor=(-0.05, 0.5))
        for axes in grid[:, 0]:
            axes.set_ylabel("times its fair share")
        for axes in (*grid[1, :3], grid[0, 3]):
            axes.set_xlabel(f"{manuals.shape[1]} experts, most used first")
        figure.tight_layout()
        figure.savefig(path, dpi=100, pil_kwargs={"optimize": True})
        plt.close(figure)
