"""Calls of tools as models write them: one file a dialect, read as they come and described as a grammar."""
