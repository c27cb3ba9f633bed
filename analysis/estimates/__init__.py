"""One table of published numbers: from runs.parquet and reported.csv to estimates.parquet."""
