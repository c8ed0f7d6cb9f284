"""A model on one computing device: weights packed there, the state of all slots, its layers as lists of launches."""
