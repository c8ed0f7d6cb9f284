"""Gives a model of packed weights its windows and reads in C++. Knows which families the library computes."""

from strata.models.base import LanguageModel
from strata.models.decoder import Decoder
from strata.models.fast import decoder, qwen4_exp
from strata.models.fast.held import PackedTable
from strata.models.fast.parts import Kept
from strata.models.fast.windows import FastWindows, WindowShape
from strata.models.mixers.ngram import NgramPart
from strata.models.qwen4_exp import Qwen4Exp
from strata.native import mixers
from strata.native.pool import Pool


def attach_fast_windows(model: LanguageModel, pool: Pool) -> bool:
    """Compute the model's rows in C++ from now on; False if the library does not know its family.

    The model must have been built of `PackedWeights`.
    """
    kept = Kept()
    if isinstance(model, Qwen4Exp):
        ngrams = [layer.ngram for layer in model.layers]
        per_token = [model.config.moe.experts_per_token] * len(model.layers)
        ratio = model.config.indexer.ratio
        model.fast = _windows(qwen4_exp.describe_model(model, kept), kept, pool, ngrams, per_token, ratio)
        if model.draft_head is not None:
            native = qwen4_exp.describe_draft_layer(model, kept)
            model.draft_head.fast = _windows(native, kept, pool, [None], per_token[:1], ratio)
        return True
    if isinstance(model, Decoder):
        mlp = model.config.mlp
        per_token = [mlp.require_moe().experts_per_token if is_sparse else 0 for is_sparse in mlp.layer_is_sparse]
        native = decoder.describe_model(model, kept)
        model.fast = _windows(native, kept, pool, [None] * len(model.layers), per_token, 0)
        return True
    return False


def _windows(
    native: mixers.ModelShape,
    kept: Kept,
    pool: Pool,
    ngrams: list[NgramPart | None],
    per_token: list[int],
    ratio: int,
) -> FastWindows:
    shape = WindowShape(
        hidden_width=native.streams * native.hidden,
        vocabulary=native.vocabulary,
        ratio=ratio,
        ngrams=ngrams,
        table_is_resident=[part is None or isinstance(part.table, PackedTable) for part in ngrams],
        experts_per_token=per_token,
    )
    return FastWindows(mixers.Model(native, pool.handle), shape, (kept, pool))
