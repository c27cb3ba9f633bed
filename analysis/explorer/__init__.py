"""The explorer: a study's numbers as one HTML file that needs no network."""
