"""What one cell says: run.json, step times and provenance, read and written here only."""
