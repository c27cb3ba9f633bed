"""How many jobs should share a GPU: advice on a study's sets, on one script, and predictions."""

NEAR = 0.9  # of the highest throughput: the fewest jobs that reach this share of it are advised
