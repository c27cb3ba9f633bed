"""Runs a probe of a torch-free job: `python -m tests.probing FOLDER JSON`; prints its record.

JSON: memory_mb and step_s of the job, max_jobs, seconds, and groups: [with_lone, [n, method], ...].
"""

import json
import sys
from pathlib import Path

from tests.studio import workload
from workflow.collocation.gpu import find_devices
from workflow.collocation.record.probe import JobSet, SetGroup
from workflow.collocation.run.visit import ProbeTask, run_probe
from workflow.collocation.study.cell import ImplementationSpec
from workflow.collocation.study.definition import Sampling
from workflow.collocation.study.load import validate
from workflow.collocation.study.names import IMPLEMENTATIONS
from workflow.collocation.study.workloads import VisionWorkload


def main(folder: Path, asked: dict) -> None:
    entry = workload(memory_mb=asked["memory_mb"], step_s=asked.get("step_s", 0.01))
    job = validate(VisionWorkload, entry, "job")
    data = folder / "data"
    data.mkdir(parents=True)
    (data / "manifest.json").write_text("{}")
    devices, _ = find_devices("auto")
    task = ProbeTask(
        jobs={"toy": job},
        implementation=ImplementationSpec(**IMPLEMENTATIONS["bf16"]),
        device=devices[0],
        folder=folder,
        max_jobs=asked["max_jobs"],
        seconds=asked["seconds"],
        trainer="tests.torchfree",
        datasets={job.dataset: {"path": str(data)}},
        telemetry=Sampling(),
    )
    groups = [
        SetGroup([JobSet(n=n, method=method) for n, method in sets], with_lone)
        for with_lone, *sets in asked["groups"]
    ]
    record = run_probe(task, lambda name, state: None, lambda reading: groups)
    print(record.model_dump_json())


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]))
