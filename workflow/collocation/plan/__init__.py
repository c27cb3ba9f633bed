"""Plans one run: which cells are pending, on which device they run, and how long they take."""
