"""The oracle: the same random model in transformers, eager and in float64, with every selection's margin.

Knows how transformers names and rounds things; knows nothing of Strata's models.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from tests.oracle.configs import Case


class Float64Everywhere(TorchFunctionMode):
    """Lifts casts to float32 to float64.

    A transformers model rounds norms, softmax, rotary tables and the delta rule to float32 whatever its own dtype;
    without this a float64 comparison would measure their rounding (about 1e-6) and not ours.
    """

    def __torch_function__(
        self, func: Callable[..., Any], types: Iterable[type], args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = {name: _lifted(value) for name, value in (kwargs or {}).items()}
        if func is torch.Tensor.float:
            return args[0].double()
        return func(*[_lifted(value) for value in args], **kwargs)


def _lifted(value: Any) -> Any:
    return torch.float64 if value is torch.float32 else value


class SelectionWatch(TorchFunctionMode):
    """Settles ties of every top-k by the lower index, and keeps each row's selection margin.

    torch.topk leaves open which of two equal scores it takes, and the indexer's relu makes many scores exactly 0;
    Strata takes the lower index, so the oracle must. The margin of a row is how far its scores, over all layers,
    are from another choice.
    """

    def __init__(self, num_rows: int, compress_ratio: int) -> None:
        super().__init__()
        self.margin = torch.full((num_rows,), float("inf"), dtype=torch.float64)
        self._first_row = compress_ratio - 1  # the indexer chooses nothing before its first complete block
        self._row = self._first_row
        self._head_scores = torch.empty(0)  # [blocks, heads] before the indexer's relu

    def __torch_function__(
        self, func: Callable[..., Any], types: Iterable[type], args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func is torch.relu:
            self._head_scores = args[0]
        if func not in (torch.topk, torch.Tensor.topk):
            return func(*args, **(kwargs or {}))
        scores, k = args[0], args[1]
        if scores.dim() == 2:  # the router: [rows, experts]
            self.margin = torch.minimum(self.margin, _boundary_gap(scores, k))
        else:  # the indexer: [blocks], one call a row, rows in order, layer after layer
            self.margin[self._row] = torch.minimum(self.margin[self._row], self._indexer_gap(scores, k))
            self._row = self._row + 1 if self._row + 1 < len(self.margin) else self._first_row
        values, indices = scores.sort(dim=-1, descending=True, stable=True)
        return torch.return_types.topk((values[..., :k], indices[..., :k]))

    def _indexer_gap(self, scores: torch.Tensor, k: int) -> torch.Tensor:
        gap = _boundary_gap(scores[None], k)[0]
        if gap > 0.0:
            return gap
        below_zero = -self._head_scores.amax(dim=1)[scores == 0.0]  # how far the tied blocks are from a score
        return below_zero.min() if len(below_zero) else gap


def _boundary_gap(scores: torch.Tensor, k: int) -> torch.Tensor:
    """Gap between rank k and rank k + 1. scores [rows, n] -> [rows], infinite if all are chosen."""
    if scores.shape[1] <= k:
        return torch.full((scores.shape[0],), float("inf"), dtype=torch.float64)
    ranked = scores.double().sort(dim=1, descending=True).values
    return ranked[:, k - 1] - ranked[:, k]


def build(case: Case) -> torch.nn.Module:
    """The transformers model of a case in float64 with random parameters (all of them float32 numbers)."""
    with Float64Everywhere(), torch.no_grad():
        model = _class_of(case)(_config_of(case)).eval().double()
        generator = torch.Generator().manual_seed(case.seed)
        for name, parameter in sorted(model.named_parameters()):
            parameter.copy_(_random_parameter(name, parameter, generator).double())
    return model


def logits_and_margins(model: torch.nn.Module, case: Case) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits [rows, vocabulary] in float64 and the selection margin of each row [rows]."""
    watch = _watch(case)
    with torch.no_grad(), watch, Float64Everywhere():
        logits = model(input_ids=torch.tensor([case.token_ids]), use_cache=False).logits[0]
    assert logits.dtype == torch.float64
    return logits, watch.margin


def float32_logits(model: torch.nn.Module, case: Case) -> torch.Tensor:
    """The oracle's own logits in float32 [rows, vocabulary]; the model is float32 afterwards."""
    with torch.no_grad(), _watch(case):
        logits: torch.Tensor = model.float()(input_ids=torch.tensor([case.token_ids]), use_cache=False).logits[0]
    return logits


def _watch(case: Case) -> SelectionWatch:
    return SelectionWatch(len(case.token_ids), case.text_config.get("indexer_compress_ratio") or 1)


def canonical_tensors(model: torch.nn.Module, case: Case) -> dict[str, torch.Tensor]:
    """The model's tensors by canonical name."""
    tensors = {name.replace("model.language_model.", "model."): value for name, value in model.state_dict().items()}
    if case.text_config["tie_word_embeddings"]:
        del tensors["lm_head.weight"]
    return tensors


def _config_of(case: Case) -> Any:
    from transformers import LlamaConfig, Qwen3_5MoeTextConfig, Qwen3MoeConfig, Qwen3NextConfig
    from transformers.models.qwen4_exp.configuration_qwen4_exp import Qwen4ExpTextConfig

    classes = {
        "qwen4_exp": Qwen4ExpTextConfig,
        "qwen3_5_moe": Qwen3_5MoeTextConfig,
        "qwen3_next": Qwen3NextConfig,
        "qwen3_moe": Qwen3MoeConfig,
        "llama": LlamaConfig,
    }
    fields = {name: value for name, value in case.text_config.items() if name != "model_type"}
    return classes[case.family](**fields, attn_implementation="eager", experts_implementation="eager")


def _class_of(case: Case) -> Any:
    from transformers import LlamaForCausalLM, Qwen3_5MoeForCausalLM, Qwen3MoeForCausalLM, Qwen3NextForCausalLM
    from transformers.models.qwen4_exp.modeling_qwen4_exp import Qwen4ExpForCausalLM

    return {
        "qwen4_exp": Qwen4ExpForCausalLM,
        "qwen3_5_moe": Qwen3_5MoeForCausalLM,
        "qwen3_next": Qwen3NextForCausalLM,
        "qwen3_moe": Qwen3MoeForCausalLM,
        "llama": LlamaForCausalLM,
    }[case.family]


def _random_parameter(name: str, initial: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Scales that keep activations and logits of order 1 and gates away from their trivial values.

    initial and result have the parameter's shape; the result holds float32 numbers.
    """
    shape = initial.shape
    normal = torch.randn(shape, generator=generator, dtype=torch.float32)
    if name.endswith("A_log"):
        # A memory of a few rows at least: with a shorter one a head's output is nearly one vector times (query . key),
        # and where that product is near 0 the gated norm blows float32 rounding up, in transformers as here.
        return (torch.rand(shape, generator=generator) + 0.02).log()
    if name.endswith("dt_bias"):
        return normal - 1.0
    if len(shape) == 1:  # norms: around 0 or 1, whichever the family starts from
        return initial.float() + 0.2 * normal
    if "embed" in name:
        return 0.4 * normal
    if name.endswith("mlp.gate.weight"):  # the router: experts must differ clearly
        return 2.0 * normal * shape[-1] ** -0.5
    return normal * shape[-1] ** -0.5
