"""How many jobs to put on a GPU: on a study's sets, on a script of one's own, and by prediction."""
