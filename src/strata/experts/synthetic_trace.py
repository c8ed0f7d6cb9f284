"""Routing of models that nobody has a recording of: popular experts, topics that change, tokens like the one before.

Knows the law and its draws; knows no model, no file and no cache.
"""

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from strata.errors import SettingsError

MOST_IDS = 1 << 30  # 2 GiB
_TAKEN_AGAIN = 1e3  # beyond any score that a draw reaches


@dataclass(frozen=True)
class RoutingLaw:
    """How the experts of a row are drawn. Raises SettingsError for values that make no law.

    In each layer popularity follows Zipf's law: the r-th expert is asked for r^-zipf times as often as the first. The
    share `topic_share` of the draws follows an order that belongs to the topic and holds `topic_experts` of the layer's
    experts; the other draws follow one order of all of them that never changes. Each expert of a conversation's last
    token is taken again with probability `reuse`.

    The defaults give, for 512 experts of which a token takes 10, what is published of such a model: LRU with 64 and 128
    seats a layer hits 69 and 82 % (published: 67 to 70, 81 to 83), four tokens take 2.6 times the experts of one (2.3
    to 2.7), and of experts without a seat two, three and four tokens take 1.7, 2.4 and 3.0 times those of one (1.75,
    2.4, 3.05).
    """

    zipf: float = 1.0
    topic_tokens: int = 400
    topic_share: float = 0.8
    topic_experts: float = 0.375
    reuse: float = 0.3
    seed: int = 0

    def __post_init__(self) -> None:
        limits = {
            "zipf": (0, 10),
            "topic_tokens": (1, 1 << 30),
            "topic_share": (0, 0.999),
            "topic_experts": (0.001, 1),
            "reuse": (0, 0.999),
            "seed": (0, (1 << 63) - 1),
        }
        for field in fields(self):
            value, (low, high) = getattr(self, field.name), limits[field.name]
            if not low <= value <= high:
                raise SettingsError(f"routing law: {field.name} is {value}; {low:g} to {high:g} works")


UNIFORM = RoutingLaw(zipf=0.0, topic_share=0.0, reuse=0.0)  # every expert alike, every row for itself


@dataclass(frozen=True)
class RoutingShape:
    """How much is drawn: a row of each conversation a window. Raises SettingsError for sizes that cannot be."""

    windows: int
    conversations: int
    layers: int
    experts: int
    ranks: int  # experts of a row in a layer

    def __post_init__(self) -> None:
        limits = {"windows": 1 << 20, "conversations": 1024, "layers": 1024, "experts": 1 << 15, "ranks": self.experts}
        for field, most in limits.items():
            if not 1 <= getattr(self, field) <= most:
                raise SettingsError(f"drawn trace: {field} is {getattr(self, field)}; 1 to {most:,} works")
        rows = self.windows * self.conversations
        if rows * self.layers * self.ranks > MOST_IDS:
            raise SettingsError(
                f"drawn trace: {rows:,} rows of {self.layers} layers are {rows * self.layers * self.ranks:,} ids; at "
                f"most {MOST_IDS:,} are drawn: give fewer windows"
            )


def draw_routing(law: RoutingLaw, shape: RoutingShape) -> NDArray[np.int16]:
    """Expert ids [windows, conversations, layers, ranks], distinct in every row and layer, best first."""
    rng = np.random.default_rng(law.seed)
    general = _ladder(law.zipf, shape.experts, shape.experts)
    of_topic = _ladder(law.zipf, shape.experts, max(1, round(law.topic_experts * shape.experts)))
    always = (1 - law.topic_share) * _in_any_order(rng, general, shape.layers)

    def new_topic() -> NDArray[np.float64]:
        """log of every expert's share [layers, experts]."""
        return np.log(always + law.topic_share * _in_any_order(rng, of_topic, shape.layers))

    topics = np.stack([new_topic() for _ in range(shape.conversations)])
    ends = rng.integers(1, law.topic_tokens + 1, shape.conversations)  # conversations do not change topics together
    ids = np.empty((shape.windows, shape.conversations, shape.layers, shape.ranks), np.int16)
    last = np.empty((*topics.shape[:2], 0), np.int64)
    for window in range(shape.windows):
        for conversation in np.flatnonzero(ends == window):
            topics[conversation] = new_topic()
            ends[conversation] += law.topic_tokens
        # The k largest of log(share) + Gumbel noise are k draws without putting back.
        scores = topics - np.log(rng.standard_exponential(topics.shape))
        kept = np.where(rng.random(last.shape) < law.reuse, _TAKEN_AGAIN, 0.0)
        np.put_along_axis(scores, last, np.take_along_axis(scores, last, -1) + kept, -1)
        last = _largest(scores, shape.ranks)
        ids[window] = last
    return ids


def _ladder(zipf: float, experts: int, steps: int) -> NDArray[np.float64]:
    """Shares of the draws [experts], the first `steps` of them above 0."""
    shares = np.zeros(experts)
    shares[:steps] = np.arange(1, steps + 1) ** -float(zipf)
    return shares / shares.sum()


def _in_any_order(rng: np.random.Generator, ladder: NDArray[np.float64], layers: int) -> NDArray[np.float64]:
    """The ladder in another order for each layer [layers, experts]."""
    return rng.permuted(np.tile(ladder, (layers, 1)), axis=-1)


def _largest(scores: NDArray[np.float64], count: int) -> NDArray[np.int64]:
    """Indices of the largest along the last axis, the largest first."""
    found = np.argpartition(scores, -count, axis=-1)[..., -count:]
    order = np.argsort(-np.take_along_axis(scores, found, -1), axis=-1)
    return np.take_along_axis(found, order, -1)
