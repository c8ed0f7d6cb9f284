"""Guessing tokens ahead and deciding which guesses stand."""
