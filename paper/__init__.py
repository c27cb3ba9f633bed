"""One paper beside a study: its claims and values, and the pages of this repository on them."""
