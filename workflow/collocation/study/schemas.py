"""JSON schemas of config.yaml, workloads.yaml and studies, which help editors check them."""

import json
from collections.abc import Iterator
from pathlib import Path

from pydantic import TypeAdapter

from workflow.collocation.study.definition import Config, Study
from workflow.collocation.study.workloads import AnyWorkload

FOLDER = Path(__file__).resolve().parents[2] / "schemas"


def json_schemas() -> Iterator[tuple[Path, str]]:
    """Each schema's path in workflow/schemas, and its text."""
    types = {"config": Config, "study": Study, "workloads": dict[str, AnyWorkload]}
    for name, kind in types.items():
        schema = TypeAdapter(kind).json_schema()
        yield FOLDER / f"{name}.schema.json", json.dumps(schema, indent=1) + "\n"
