"""JSON schemas of the files that people write, for editors: workflow/schemas/ holds them."""

import json
from collections.abc import Iterator
from pathlib import Path

from pydantic import TypeAdapter

from workflow.collocation.study.definition import Config, Study
from workflow.collocation.study.workloads import AnyWorkload

FOLDER = Path(__file__).resolve().parents[2] / "schemas"


def json_schemas() -> Iterator[tuple[Path, str]]:
    """Each schema's file and its text: of config.yaml, of workloads.yaml, of a study."""
    for name, model in (
        ("config", Config),
        ("study", Study),
        ("workloads", dict[str, AnyWorkload]),
    ):
        schema = TypeAdapter(model).json_schema()
        yield FOLDER / f"{name}.schema.json", json.dumps(schema, indent=1) + "\n"
