"""Classifies texts by the mean of their words; `python -m textclass` trains it."""
