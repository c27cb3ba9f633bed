"""How many of one job fit on a GPU, asked by one command: `make advise RUN="python train.py"`.

request: whose job, and the bounds. study: a study of its own beneath, which Snakemake measures.
answer: what was predicted and measured, and what follows.
"""
