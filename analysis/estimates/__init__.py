"""From the records of cells to estimates.parquet: every published number, once."""
