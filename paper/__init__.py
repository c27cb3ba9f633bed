"""One paper beside a study: its claims and values, and the pages of this repository on them."""

PAGES = ("results", "claims", "advice", "belief")  # of a study that is held against the paper
