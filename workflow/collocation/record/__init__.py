"""Reads and writes the files of one cell: run.json, step times, requests, provenance."""
