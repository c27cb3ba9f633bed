"""`collocate export`: a study's measurements for an experiment tracker."""

from enum import StrEnum
from typing import Annotated

import typer

from collocate import studies, terminal
from collocate.app import app


class Tracker(StrEnum):
    """Formats of runs in MLflow: our own names, or those of the paper's tool radT."""

    mlflow = "mlflow"
    radt = "radt"


@app.command()
def export(
    study: studies.Measured,
    tracker: Annotated[Tracker, typer.Option("--to", help="names of runs and metrics")],
    results: studies.Results = None,
) -> None:
    """Export a study into MLflow.

    Measurements, jobs and telemetry go to MLFLOW_TRACKING_URI, or else into mlruns/ of the study's
    folder.
    """
    folder = studies.folder_of(study, results)
    from analysis.report.export import export_study

    terminal.show(export_study(folder, tracker.value))
