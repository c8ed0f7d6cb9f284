"""The fast twin of decode windows: the model described to the C++ library, one call a window."""
