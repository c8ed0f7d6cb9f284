"""What the benches of a card's windows have in common: flags of made-up models and turns, ranges, lines about a card.

Knows flags; knows no measurement.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Annotated, Any, Literal

import torch
from cyclopts import Parameter
from rich.text import Text

from strata.bench.synthetic_model import synthetic_config
from strata.cli.flags import WholeNumber
from strata.errors import SettingsError
from strata.kernels.compiled import use_cache
from strata.models.config_fields import MOST_LAYERS
from strata.models.device.synthetic import SyntheticForm
from strata.quant.cell_codes import CellKind
from strata.settings import kernel_cache_folder, resolve

MOST_CONTEXT = 262_144
MOST_SLOTS = 32
MOST_TURNS = 1 << 14
COPIED_BYTES = 2 << 30

ManyNumbers = Annotated[tuple[WholeNumber, ...] | None, Parameter(negative="")]


@dataclass(frozen=True)
class MadeModel:
    """A model of the published shape.

    Parameters
    ----------
    layers
        Layers of the model; the release has 48.
    experts_bits
        Bits of a routed weight: 2.25, 4.5, 8.5 or 16.
    dense_bits
        Bits of every other matrix's weights.
    routing
        uniform: every expert alike; popular: as in one topic of `strata trace synth`, each row for itself.
    kv_kind
        How keys and values are kept, as for `strata serve`.
    tiny
        A model of a few megabytes instead; also runs without a card, which takes minutes and measures nothing real.
    seed
        Of weights and state.
    """

    layers: WholeNumber = 12
    experts_bits: float = SyntheticForm.experts_bits
    dense_bits: float = SyntheticForm.dense_bits
    routing: Literal["uniform", "popular"] = "uniform"
    kv_kind: Literal["bf16", "int8", "k8v4", "q4", "f32"] = "bf16"
    tiny: Annotated[bool, Parameter(negative="")] = False
    seed: WholeNumber = 0

    @property
    def cell_kind(self) -> CellKind:
        """The same as the kernels know it."""
        return CellKind(self.kv_kind)

    @property
    def form(self) -> SyntheticForm:
        """Raises SettingsError for bits that there are not."""
        return SyntheticForm(self.experts_bits, self.dense_bits, self.seed)

    @property
    def is_popular(self) -> bool:
        """Whether some experts are asked for more often than others."""
        return self.routing == "popular"

    @cached_property
    def config(self) -> dict[str, Any]:
        """config.json."""
        return synthetic_config(self.layers, self.tiny)

    def check(self) -> None:
        """Raises SettingsError for what cannot be made."""
        check_ranges(self.layers, (), (), {})
        _ = self.form

    def require_card(self, *, has_card: bool) -> None:
        """Raises SettingsError for what only a card can hold, where there is none: behind every other check."""
        if not has_card and not self.tiny:
            raise SettingsError("this measures a card, and torch sees none here: --tiny tries it without")

    def facts(self, *, has_card: bool) -> dict[str, Any]:
        """For a report."""
        card = torch.cuda.get_device_name() if has_card else None
        made = {"layers": self.layers, "tiny": self.tiny, "routing": self.routing, "kv_kind": self.kv_kind}
        return {"card": card, "torch": torch.__version__, **asdict(self.form), **made}


@dataclass(frozen=True)
class Turns:
    """How often what is run.

    Parameters
    ----------
    context
        Tokens that each conversation has, filled with random state; may be given several times. 1,024 and 30,000 if not
        given, with --cache 1,024.
    slots
        Conversations that share a window; may be given several times. 1, 2, 4 and 8 if not given, with --cache 1.
    rounds
        How often each pair of context and slots has its turn.
    windows
        Windows of a turn.
    """

    context: ManyNumbers = None
    slots: ManyNumbers = None
    rounds: WholeNumber = 5
    windows: WholeNumber = 32

    def check(self) -> None:
        """Raises SettingsError for the first number that does not work."""
        check_ranges(1, self.context or (), self.slots or (), {"rounds": self.rounds, "windows": self.windows})


def check_ranges(layers: int, contexts: Sequence[int], slots: Sequence[int], counts: Mapping[str, int]) -> None:
    """Raises SettingsError for the first number that no model or card takes."""
    limits = [("layers", layers, MOST_LAYERS), *(("context", each, MOST_CONTEXT) for each in contexts)]
    limits += [("slots", each, MOST_SLOTS) for each in slots]
    limits += [(name, each, MOST_TURNS) for name, each in counts.items()]
    for name, value, most in limits:
        if not 1 <= value <= most:
            raise SettingsError(f"--{name} {value} does not work; a whole number from 1 to {most:,} does")


def device_of(*, has_card: bool) -> torch.device:
    """Where the model is made."""
    return torch.device("cuda" if has_card else "cpu")


def use_kept_kernels() -> None:
    """Compiled kernels come from the folder of every other command, and go there."""
    use_cache(kernel_cache_folder(resolve({}).engine))


def copy_rate() -> float:
    """10^9 bytes a second that copying inside the card reads and writes."""
    from strata.bench.device_timing import device_rates_gb_per_s  # needs Triton

    size = min(COPIED_BYTES, torch.cuda.mem_get_info()[0] // 8) >> 20 << 20
    copied, _ = device_rates_gb_per_s(size)
    torch.cuda.empty_cache()
    return copied


def made_lines(facts: Mapping[str, Any], turns: str) -> list[Text]:
    """Over a table: card, model and how often. facts: of `MadeModel.facts`, and copy_gb_per_s."""
    shape = "tiny" if facts["tiny"] else "published"
    first = Text(
        f"{facts['card'] or 'no card'}; {facts['layers']} layers of the {shape} shape, random weights, experts "
        f"{facts['experts_bits']:g} bits, others {facts['dense_bits']:g}, keys and values {facts['kv_kind']}; "
        f"median (lowest to highest) of {turns}"
    )
    if facts["card"] is None:
        where = "torch's definitions of the kernels ran on the processor: these numbers measure nothing real"
        return [first, Text(where, style="bold red")]
    return [first, Text(f"copying inside the card: {facts['copy_gb_per_s']:,.0f} GB/s")]
