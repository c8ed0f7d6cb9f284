"""Text in and out: tokenizer, chat template, detokenizer, stop strings. Token ids are the border to the engine."""
