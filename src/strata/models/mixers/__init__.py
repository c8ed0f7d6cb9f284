"""Sequence mixers: a block's maths joined with the state that a slot keeps for it."""
