"""Which method, how many at once: sentences filled from the tables."""
