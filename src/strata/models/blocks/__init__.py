"""Maths that families share: pure functions over plain tensors and small frozen weights."""
