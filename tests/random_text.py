"""Random token ids for models of random weights. Knows no model."""

import torch

LEAST_VOCABULARY = 67  # every tiny model has at least these ids


def text_of(rows: int, seed: int = 0, vocabulary: int = LEAST_VOCABULARY) -> torch.Tensor:
    """int64 [rows], the same for the same seed."""
    return torch.randint(vocabulary, (rows,), generator=torch.Generator().manual_seed(seed))


def token_ids_of(rows: int, seed: int = 0, vocabulary: int = LEAST_VOCABULARY) -> list[int]:
    """The same as a list."""
    tokens: list[int] = text_of(rows, seed, vocabulary).tolist()
    return tokens
