"""One cell: what it is to measure."""
