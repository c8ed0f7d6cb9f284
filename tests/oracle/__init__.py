"""Strata's model families against an implementation that nobody here wrote."""
