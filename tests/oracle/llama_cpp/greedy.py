"""The greedy text of SmolLM2 by llama.cpp and by Strata, token by token, and where and how closely they part.

Knows the record in fixtures/smollm_greedy.json; the prompts are in `prompts.py`.
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from strata.bench.llama_cpp import LlamaCppModel
from strata.engine.control import RunControl
from strata.engine.engine import TokenEngine
from strata.engine.request import TokenRequest, TokensDrawn
from strata.sampling.draw import Draw
from strata.sampling.options import SamplingOptions
from strata.scheduler.due import Limits
from strata.scheduler.runner import RequestRunner
from strata.scheduler.scheduler import Scheduler
from strata.text.tokenizer import Tokenizer
from tests.oracle.llama_cpp.prompts import PROMPTS, Prompt

RECORD = Path(__file__).parent / "fixtures" / "smollm_greedy.json"
TOKENS = 40
NEAR_TIE = 0.5  # two logits this near may change places: both round activations or weights in their own way


@dataclass(frozen=True)
class GreedyText:
    """What llama.cpp made of one prompt."""

    name: str
    prompt_ids: list[int]
    token_ids: list[int]
    margins: list[float]  # at each token: how far the second logit was from the first


@dataclass(frozen=True)
class Parting:
    """Where our text leaves llama.cpp's."""

    name: str
    token: int
    their_margin: float  # llama.cpp's first logit minus its second
    our_margin: float  # our logit of our token minus ours of theirs


def record(model: LlamaCppModel) -> list[GreedyText]:
    """Let llama.cpp answer every prompt."""
    return [_answer(model, prompt) for prompt in PROMPTS]


def write_record(texts: list[GreedyText]) -> None:
    """Keep what llama.cpp said."""
    lines = ",\n".join(json.dumps(asdict(text)) for text in texts)
    RECORD.write_text(f"[\n{lines}\n]\n", "utf-8")


def read_record() -> list[GreedyText]:
    """What llama.cpp said when the record was made."""
    return [GreedyText(**values) for values in json.loads(RECORD.read_text("utf-8"))]


def our_prompt_ids(tokenizer: Tokenizer, prompt: Prompt) -> list[int]:
    """The prompt by our tokenizer and the file's template."""
    if prompt.messages:
        return tokenizer.encode_chat([{"role": role, "content": content} for role, content in prompt.messages], None)
    return tokenizer.encode(prompt.text, add_special_tokens=True)


def find_parting(engine: TokenEngine, text: GreedyText) -> Parting | None:
    """Continue the prompt ourselves; None if we say the same."""
    options = SamplingOptions(temperature=0.0, max_tokens=len(text.token_ids), logprobs=20)
    draws: list[Draw] = []
    runner = RequestRunner(lambda: Scheduler(engine, Limits(slots=1)))
    for event in runner.run(TokenRequest(tuple(text.prompt_ids), options), RunControl()):
        if isinstance(event, TokensDrawn):
            draws += event.draws
    for index, (draw, theirs) in enumerate(zip(draws, text.token_ids, strict=True)):
        if draw.token_id != theirs:
            shares = {entry.token_id: entry.logprob for entry in draw.top_logprobs}
            ours = shares[draw.token_id] - shares.get(theirs, float("-inf"))
            return Parting(text.name, index, text.margins[index], ours)
    return None


def _answer(model: LlamaCppModel, prompt: Prompt) -> GreedyText:
    rendered = model.render(prompt.messages) if prompt.messages else prompt.text
    prompt_ids = model.tokenize(rendered, control_tokens=bool(prompt.messages))
    model.clear()
    logits = model.read(prompt_ids)[0]
    token_ids, margins = [], []
    while True:
        best, margin = _best(logits)
        token_ids.append(best)
        margins.append(round(margin, 3))
        if len(token_ids) == TOKENS or model.is_end(best):
            return GreedyText(prompt.name, prompt_ids, token_ids, margins)
        logits = model.read([best])[0]


def _best(logits: NDArray[np.float32]) -> tuple[int, float]:
    second, first = np.argpartition(logits, -2)[-2:]
    return int(first), float(logits[first] - logits[second])
