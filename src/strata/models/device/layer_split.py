"""Which layers of a model lie on which stage: runs of consecutive layers, none empty. Pure; knows no device."""

import re
from bisect import bisect_right
from dataclasses import dataclass
from itertools import pairwise

from strata.errors import SettingsError

FIELD = "layer_split"
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
_LAYER = re.compile(r"model\.layers\.(\d+)\.")


@dataclass(frozen=True)
class LayerSplit:
    """The layers of a model, cut into a run for each stage."""

    layers: int
    cuts: tuple[int, ...] = ()  # the first layer of each stage but the first one; rising

    @classmethod
    def of(cls, layers: int, cuts: tuple[int, ...]) -> "LayerSplit":
        """Raises SettingsError for a cut that leaves a stage empty, or that is no layer of the model."""
        told = ",".join(map(str, cuts))
        for cut in cuts:
            if not 0 < cut < layers:
                raise SettingsError(
                    f"setting {FIELD}: {told} cuts in front of layer {cut}, of a model with layers 0 to {layers - 1}: "
                    f"{_what_works(layers)}"
                )
        for before, after in pairwise(cuts):
            if after <= before:
                raise SettingsError(
                    f"setting {FIELD}: {told} leaves a stage between {before} and {after} without a layer: give rising "
                    f"numbers, as in {','.join(map(str, sorted(set(cuts))))}"
                )
        return cls(layers, cuts)

    @property
    def stages(self) -> int:
        """How many runs there are."""
        return len(self.cuts) + 1

    @property
    def runs(self) -> tuple[range, ...]:
        """The layers of each stage."""
        return tuple(range(first, stop) for first, stop in pairwise((0, *self.cuts, self.layers)))

    def stage_of_layer(self, layer: int) -> int:
        """Raises IndexError for no layer of the model."""
        if not 0 <= layer < self.layers:
            raise IndexError(f"layer {layer} of a model with {self.layers}")
        return bisect_right(self.cuts, layer)

    def stages_of_tensor(self, name: str, *, is_tied: bool) -> tuple[int, ...]:
        """Where a tensor of this canonical name is held: the embedding first, a layer's beside it, the head's last.

        is_tied: the head reads the embedding, which is then on the last stage too.
        """
        last = self.stages - 1
        if name == EMBEDDING:
            return (0, last) if is_tied and last else (0,)
        return (self.stage_of_part(name),)

    def stage_of_part(self, name: str) -> int:
        """Of a tensor, or of a prefix of some, but the embedding."""
        layer = _LAYER.match(name)
        return self.stages - 1 if layer is None else self.stage_of_layer(int(layer[1]))


def parse_cuts(text: str) -> tuple[int, ...]:
    """The numbers of `K[,K..]`. Raises SettingsError for anything else."""
    if not re.fullmatch(r"\d+(,\d+)*", text):
        raise SettingsError(
            f"setting {FIELD}: {text!r} is not the first layer of every stage but the first one, in rising order and "
            "with commas between: `13` makes two stages, `13,30` makes three"
        )
    return tuple(map(int, text.split(",")))


def _what_works(layers: int) -> str:
    if layers < 2:
        return "a model of one layer is not split"
    return f"{1 if layers == 2 else f'1 to {layers - 1}'} works"
