"""From a study to the jobs of one session: cells, what is pending, what it will take."""
