"""The figures of a study: their data from estimates.parquet, their drawing from the data alone."""

# Eight that answer a question of the reader each, and those that only docs show.
NAMES = (
    "rate_against_n",
    "gain_against_slowdown",
    "where_to_share",
    "epoch_time",
    "gaps_and_overlap",
    "activity",
    "mixes_and_departures",
    "reported_against_measured",
)
APPENDIX = ("memory", "repeatability", "mps_against_host")
