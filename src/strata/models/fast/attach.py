"""Gives a loaded model its fast twin. Knows which families have one; a model of another family stays in torch."""

import torch

from strata.models.base import LanguageModel
from strata.models.decoder import Decoder
from strata.models.fast import decoder, qwen4_exp
from strata.models.fast.matrices import MatrixReader
from strata.models.fast.windows import FastWindows, WindowShape
from strata.models.mixers.ngram import NgramPart, ResidentTable
from strata.models.qwen4_exp import Qwen4Exp
from strata.native import mixers
from strata.native.pool import Pool
from strata.types import ProgressCallback
from strata.weights.source import WeightSource


def attach_fast_windows(
    model: LanguageModel, source: WeightSource, pool: Pool, on_progress: ProgressCallback | None = None
) -> bool:
    """Compute the model's windows in C++ from now on; False if there is no fast twin for it.

    Packs the model's matrices a second time, in the code that `source` holds them in.
    """
    if isinstance(model, Qwen4Exp) and model.dtype is torch.float32:
        prefixes = [f"model.layers.{layer.index}.mlp." for layer in model.layers]
        if model.draft_head is not None:
            prefixes.append("mtp.layers.0.mlp.")
        reader = MatrixReader(source, prefixes, on_progress)
        ngrams = [layer.ngram for layer in model.layers]
        per_token = [model.config.moe.experts_per_token] * len(model.layers)
        native = qwen4_exp.describe_model(model, reader)
        model.fast = _windows(native, reader, pool, ngrams, per_token, model.config.indexer.ratio)
        if model.draft_head is not None:
            native = qwen4_exp.describe_draft_layer(model, reader)
            ratio = model.config.indexer.ratio
            model.draft_head.fast = _windows(native, reader, pool, [None], per_token[:1], ratio)
        return True
    if isinstance(model, Decoder) and model.dtype is torch.float32:
        mlp = model.config.mlp
        sparse = [f"model.layers.{index}.mlp." for index, is_sparse in enumerate(mlp.layer_is_sparse) if is_sparse]
        reader = MatrixReader(source, sparse, on_progress)
        per_token = [mlp.require_moe().experts_per_token if is_sparse else 0 for is_sparse in mlp.layer_is_sparse]
        native = decoder.describe_model(model, reader)
        model.fast = _windows(native, reader, pool, [None] * len(model.layers), per_token, 0)
        return True
    return False


def _windows(
    native: mixers.ModelShape,
    reader: MatrixReader,
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
        table_is_resident=[part is None or isinstance(part.table, ResidentTable) for part in ngrams],
        experts_per_token=per_token,
    )
    return FastWindows(mixers.Model(native, pool.handle), shape, (reader, pool))
