"""From the records of cells to runs.parquet and telemetry.parquet, and what is checked then."""
