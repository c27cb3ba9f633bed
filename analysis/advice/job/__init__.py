"""Advice on one job, measured here and now: how many copies of it one GPU should run.

`request` says which job, and the bounds. A probe (workflow/collocation/run/probe.py) measures the
job alone and the sets that `advise` chooses. `numbers` computes rates and gains from its record,
`answer` predicts sets and chooses among them, and `text` shows the advice to a reader.
"""
