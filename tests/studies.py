"""Hand-made studies as analysis finds them in results/<study>."""

import json

from analysis.records import merge
from analysis.tables import checks


def furnish(folder, records, expected=()):
    """Records, runs.parquet, plan.json, checks.json and tables/evidence of a study; its folder."""
    paths = []
    for number, record in enumerate(records):
        path = folder / "records" / str(number) / "run.json"
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps(record))
        paths.append(str(path))
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "plan.json").write_text(json.dumps(list(expected)))
    study = ["--study", records[0]["study"] if records else "nothing"]
    assert merge.main([*study, "--output", str(folder / "runs.parquet"), *paths]) == 0
    beside = ["--evidence", str(folder / "tables" / "evidence")]
    assert checks.main([*study, "--output", str(folder / "checks.json"), *beside, *paths]) == 0
    return folder
