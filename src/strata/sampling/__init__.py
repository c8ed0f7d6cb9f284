"""How a token is chosen from logits: options, transforms, random draws, log-probabilities."""
