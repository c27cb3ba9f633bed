"""Holds what `collocate advise` says of jobs against fresh starts, timed by the jobs themselves."""
