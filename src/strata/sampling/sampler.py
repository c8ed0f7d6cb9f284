"""Chooses tokens from logits for one reply. Knows one request's options and the tokens of its reply; no text, no model.

A choice is a pure function of the logits row, the options with their seed and grammar, the token's position and the
tokens before it. Nothing else enters: not the rows beside it, not how often a position was tried. So drafts are
verified by choosing at each position as if there were none, and the reply is the same with and without them.
"""

from collections.abc import Iterable, Sequence

import torch

from strata.errors import EngineError
from strata.kernels.sampler.filters import draw_token
from strata.kernels.sampler.slots import ChoiceOptions
from strata.sampling.draw import Draw
from strata.sampling.grammar import Grammar
from strata.sampling.logprobs import token_logprob
from strata.sampling.on_device import device_options, samples_on_device
from strata.sampling.options import SamplingOptions
from strata.sampling.token_mask import TokenMask, mask_without, rule_out
from strata.sampling.transforms import History, adjust, transform


class Sampler:
    """The choices of one reply.

    `vocabulary_size` is the width of the logits; `prompt` counts for the repetition penalty; `choice` numbers the
    replies of a request that asks for several; `grammar` is the reply's own. Options that draw must have a seed
    (`SamplingOptions.seeded`).
    Raises RequestError if the options name ids that the vocabulary does not have.
    """

    def __init__(
        self,
        options: SamplingOptions,
        vocabulary_size: int,
        prompt: Iterable[int] = (),
        choice: int = 0,
        device: torch.device | str = "cpu",
        grammar: Grammar | None = None,
    ) -> None:
        options.check_vocabulary(vocabulary_size)
        if options.seed is None and not options.greedy:
            raise ValueError("options that draw need a seed: call SamplingOptions.seeded() where the request starts")
        self.options = options
        self._width = vocabulary_size
        self._choice = choice
        self._grammar = grammar
        self._held_back: tuple[TokenMask, int] | None = None
        self._history = _start_history(vocabulary_size, prompt, device) if options.has_penalties else None

    def hold_back(self, token_ids: Iterable[int], until_position: int) -> None:
        """These tokens are ruled out at all positions in front of this one."""
        self._held_back = mask_without(self._width, token_ids), until_position

    @property
    def device_options(self) -> ChoiceOptions | None:
        """How a GPU chooses the tokens that `sample` chooses; None if it cannot (`on_device`)."""
        if not samples_on_device(self.options, self._grammar is not None):
            return None
        return device_options(self.options, self._choice)

    @property
    def is_finished(self) -> bool:
        """Whether the grammar allows nothing but the end behind the committed tokens: the reply is whole."""
        return self._grammar is not None and self._grammar.is_finished

    def prepare(self, drafts: Sequence[int] = ()) -> None:
        """Start, beside other work, what the next `sample` or `verify` with these drafts needs."""
        if self._grammar is not None:
            self._grammar.prepare(drafts)

    def sample(self, logits: torch.Tensor, position: int) -> Draw:
        """Choose the token at `position` of the conversation from its row `[vocabulary]`, any float dtype.

        Changes nothing; `commit` tells what became part of the reply. Raises EngineError for logits that are not
        finite (-inf alone may stand for a token that is ruled out), and if no token is left.
        """
        mask = self._grammar.masks()[0] if self._grammar is not None else None
        return self._sample(logits, position, self._history, mask)

    def verify(self, logits: torch.Tensor, first_position: int, drafts: Sequence[int]) -> list[Draw]:
        """Choose from the rows `[len(drafts) + 1, vocabulary]` of a window as if its drafts were not there.

        Row i is chosen at `first_position + i` behind `drafts[:i]`. The result ends with the first choice that is not
        its draft or that finishes the grammar, so it holds one token at least: all of them are the reply's next tokens.
        Changes nothing.
        """
        if len(logits) != len(drafts) + 1:
            raise ValueError(f"{len(drafts)} drafts need {len(drafts) + 1} rows of logits, not {len(logits)}")
        history = self._history
        masks = self._grammar.masks(drafts) if self._grammar is not None else [None] * len(logits)
        draws: list[Draw] = []
        for index, mask in enumerate(masks):
            draws.append(self._sample(logits[index], first_position + index, history, mask))
            token_id = draws[-1].token_id
            if index == len(drafts) or token_id != drafts[index]:
                break
            history = _with_token(history, token_id)
        return draws

    def commit(self, token_ids: Iterable[int]) -> None:
        """These tokens are now part of the reply: later choices see them."""
        token_ids = tuple(token_ids)
        if self._history is not None:
            for token_id in token_ids:
                self._history.counts[0, token_id] += 1
        if self._grammar is not None:
            self._grammar.commit(token_ids)

    def _sample(self, logits: torch.Tensor, position: int, history: History | None, mask: TokenMask | None) -> Draw:
        row = logits.to(torch.float32)
        allowed = row if mask is None else rule_out(row, mask)
        if self._held_back is not None and position < self._held_back[1]:
            allowed = rule_out(allowed, self._held_back[0])
        largest, token = allowed.max(dim=-1)  # NaN counts as the largest; of equal logits the first
        _check_finite(float(largest), position)
        options = self.options
        if not options.greedy:
            assert options.seed is not None
            token_id = draw_token(transform(allowed[None], options, history)[0], options.seed, position, self._choice)
        elif options.has_penalties or options.logit_bias:
            token_id = int(adjust(allowed[None], options, history)[0].argmax())
        else:
            token_id = int(token)
        if options.logprobs is None:
            return Draw(token_id)
        return Draw(token_id, *token_logprob(row, token_id, options.logprobs))


def _start_history(vocabulary_size: int, prompt: Iterable[int], device: torch.device | str) -> History:
    in_prompt = torch.zeros(1, vocabulary_size, dtype=torch.bool, device=device)
    in_prompt[0, torch.tensor(sorted(set(prompt)), dtype=torch.int64, device=device)] = True
    return History(in_prompt, torch.zeros(1, vocabulary_size, dtype=torch.int32, device=device))


def _with_token(history: History | None, token_id: int) -> History | None:
    if history is None:
        return None
    counts = history.counts.clone()
    counts[0, token_id] += 1
    return History(history.in_prompt, counts)


def _check_finite(largest: float, position: int) -> None:
    if largest == float("-inf"):
        raise EngineError(f"no token is allowed at position {position}: every logit is -inf")
    if largest != largest or largest == float("inf"):
        raise EngineError(f"the model's logits at position {position} are not finite numbers")
