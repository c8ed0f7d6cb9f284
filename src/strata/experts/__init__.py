"""Experts in memory: one blob each, all of them in one arena. Knows no model family."""
