"""From the records of cells to runs.parquet, and what is checked then."""
