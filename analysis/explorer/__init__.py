"""The explorer: a study as one page in which a reader chooses what is drawn."""
