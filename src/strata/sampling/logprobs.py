"""Log-probabilities of tokens, of the model's own distribution: from the logits as they came, before any option.

Knows logits and ids; not how a token was chosen.
"""

import torch

from strata.sampling.draw import TokenLogprob


def token_logprob(logits: torch.Tensor, token_id: int, top: int) -> tuple[float, tuple[TokenLogprob, ...]]:
    """Log-probability of one token of a row `[vocabulary]`, and the `top` likeliest, of equal ones the lower id first.

    Computed row by row in float64: the figures of a row do not depend on the rows beside it.
    """
    wide = logits.double()
    largest = wide.max()
    log_of_sum = torch.log(torch.exp(wide - largest).sum())
    listed = _largest(wide, top) if top > 0 else []
    chosen, *others = ((wide[[token_id, *listed]] - largest) - log_of_sum).tolist()
    return chosen, tuple(map(TokenLogprob, listed, others))


def _largest(row: torch.Tensor, count: int) -> list[int]:
    smallest = torch.topk(row, min(count, row.numel())).values[-1]
    candidates = torch.nonzero(row >= smallest).flatten()  # rising ids, so a stable sort leaves equal ones in order
    order = torch.sort(row[candidates], descending=True, stable=True).indices
    return [int(token_id) for token_id in candidates[order[:count]]]
