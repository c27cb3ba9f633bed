"""Advice on one job, measured here and now: how many copies of it one GPU should run.

`request` says which job, and the bounds. `measuring` plans a study for it, which Snakemake
measures. `answer` predicts sets from the job alone and chooses among them. `advise` leads from a
request to advice.json, and `text` shows that to a reader.
"""
