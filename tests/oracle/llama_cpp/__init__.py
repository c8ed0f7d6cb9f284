"""Strata against llama.cpp on the same GGUF files. What llama.cpp said is kept in fixtures/; make oracle renews it."""
