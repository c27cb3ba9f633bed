"""One cell: what it is to measure, how it is run, and what is written of it."""
