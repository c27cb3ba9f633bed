"""How many of one job fit on a GPU: measured here and now.

request: whose job, and the bounds. study: a study of its own beneath, which Snakemake measures.
answer: what was predicted and measured, and what follows. advise: from one to the other. text: an
advice for a reader.
"""
