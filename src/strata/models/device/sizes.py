"""How large a model's state and its windows' rows are, from its config alone: the memory plan asks before any weight
is read. Pure integers; knows no tensor and no kernel.
"""

from dataclasses import dataclass, replace

from strata.models.decoder_config import DecoderConfig
from strata.models.qwen4_exp_config import Qwen4ExpConfig
from strata.quant.cell_codes import CellKind

CELL_ROWS = 512  # attention splits keys at its multiples, so a slot has whole runs of cells
FLOAT_BYTES = INT_BYTES = 4
DeviceConfig = Qwen4ExpConfig | DecoderConfig  # the families that run on a device


@dataclass(frozen=True)
class StateSizes:
    """What the state of one slot is made of; a model without a part has none of its layers."""

    delta_layers: int = 0
    value_heads: int = 0
    key_dim: int = 0
    value_dim: int = 0
    conv_rows: int = 0
    conv_width: int = 0
    attention_layers: int = 0
    kv_heads: int = 0
    head_dim: int = 0
    index_dim: int = 0  # 0: attention without an indexer
    ratio: int = 1  # cells of an indexer's block
    ngram_layers: int = 0
    history_rows: int = 0
    end_of_text: int = 0
    tail_rows: int = 0
    stream_width: int = 0

    @property
    def recurrent_bytes(self) -> int:
        """Of one slot's delta nets."""
        delta = self.value_heads * self.key_dim * self.value_dim + self.conv_rows * self.conv_width
        return FLOAT_BYTES * self.delta_layers * delta

    @property
    def ngram_bytes(self) -> int:
        """Of one slot's history and tails."""
        tail = self.ngram_layers * self.tail_rows * self.stream_width
        return FLOAT_BYTES * tail + INT_BYTES * self.history_rows

    @property
    def fixed_bytes(self) -> int:
        """What does not grow with a slot's rows."""
        return self.recurrent_bytes + self.ngram_bytes

    def cell_bytes(self, context: int, kind: CellKind) -> int:
        """Keys, values and the indexer's keys of one slot with room for `context` rows."""
        cells = cells_of(context)
        heads = cells * self.kv_heads * kind.head_bytes(self.head_dim)
        index = FLOAT_BYTES * (cells + cells // self.ratio) * self.index_dim
        return self.attention_layers * (heads + index)

    def state_bytes(self, slots: int, context: int, kind: CellKind) -> int:
        """The state of all slots on a device."""
        return slots * (self.fixed_bytes + self.cell_bytes(context, kind))


def cells_of(context: int) -> int:
    """Cells of a slot that has room for `context` rows."""
    return -(-context // CELL_ROWS) * CELL_ROWS


def state_sizes(config: DeviceConfig, layers: range | None = None) -> StateSizes:
    """The state of a model of this config, or of a run of its layers."""
    if isinstance(config, Qwen4ExpConfig):
        is_attention = config.layer_is_attention
        run = range(len(is_attention)) if layers is None else layers
        index_dim, ratio = config.indexer.head_dim, config.indexer.ratio
        ngrams = tuple(shape for layer, shape in config.ngrams.items() if layer in run)
        stream_width = config.stream_width
    else:
        is_attention = config.layer_is_full_attention
        run = range(len(is_attention)) if layers is None else layers
        index_dim, ratio, ngrams, stream_width = 0, 1, (), config.hidden_size
    is_attention = is_attention[run.start : run.stop]
    attention_layers = sum(is_attention)
    sizes = StateSizes(
        attention_layers=attention_layers,
        kv_heads=config.attention.kv_heads,
        head_dim=config.attention.head_dim,
        index_dim=index_dim,
        ratio=ratio,
        stream_width=stream_width,
    )
    delta = config.delta_net
    if delta is not None and attention_layers < len(is_attention):
        sizes = replace(
            sizes,
            delta_layers=len(is_attention) - attention_layers,
            value_heads=delta.value_heads,
            key_dim=delta.key_dim,
            value_dim=delta.value_dim,
            conv_rows=delta.conv_kernel - 1,
            conv_width=delta.conv_width,
        )
    if not ngrams:
        return sizes
    return replace(
        sizes,
        ngram_layers=len(ngrams),
        history_rows=ngrams[0].history_rows,
        end_of_text=ngrams[0].end_of_text_id,
        tail_rows=ngrams[0].conv_tail_rows,
    )
