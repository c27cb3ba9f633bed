"""Names of files in a study's folder, and the format of datasets: what several rooms rely on."""

RUN = "run.json"  # the record of one attempt at a cell
PLAN = "plan.json"  # the cells that the study is to have
RUNS = "runs.txt"  # the records that the tables were made from
RAW = "raw.sha256"  # digests of the raw files of a study that ships
MANIFEST = "MANIFEST.sha256"  # digests of the list of raw files and of everything derived
DATA_FORMAT = 2  # of prepared datasets; data of another format are prepared again
