"""Where tensors come from: files of models as published, or random ones; canonical names above, bytes below."""
