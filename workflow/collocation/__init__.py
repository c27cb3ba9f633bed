"""One collocated run, from GPU set-up to files on disk."""
