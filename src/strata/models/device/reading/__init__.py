"""A chunk of a prompt's rows through a model on a device, layer by layer: see `chunks.py`."""
