"""`collocate step`: the steps of the workflow after measuring, as Snakemake's rules call them."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from collocate import outputs, terminal
from collocate.app import app

step = typer.Typer(help="Steps of the workflow, as its rules call them.", rich_markup_mode=None)
app.add_typer(step, name="step")
Folder = Annotated[Path, typer.Option("--folder", metavar="RESULTS/STUDY")]
Output = Annotated[Path, typer.Option("--output", metavar="FILE")]
Paper = Annotated[
    bool, typer.Option("--paper", help="with the paper's values and claims beside them")
]


@step.command()
def records(
    study: Annotated[str, typer.Option()],
    paths: Annotated[Path, typer.Option("--list", help="a file with a record's path a line")],
    output: Output,
) -> None:
    """run.json of each measurement → runs.parquet"""
    from analysis.estimates.records.merge import write_runs

    write_runs(study, paths, output)


@step.command()
def estimates(folder: Folder, paper: Paper = False) -> None:
    """runs.parquet → estimates.parquet: every published number, once"""
    outputs.write_estimates(folder, paper)


@step.command()
def figures(
    folder: Folder,
    paper: Paper = False,
    data_only: Annotated[bool, typer.Option(help="no pictures")] = False,
) -> None:
    """estimates.parquet → the figures that the study has data for"""
    terminal.show(outputs.draw_figures(folder, paper, data_only))


@step.command()
def pages(folder: Folder, paper: Paper = False) -> None:
    """estimates.parquet → pages and tables"""
    outputs.write_pages(folder, paper)


@step.command()
def explorer(folder: Folder, output: Output) -> None:
    """estimates.parquet → the study as one page"""
    from analysis.report.explorer import write_explorer

    write_explorer(folder, output)


@step.command()
def check(pairs: Annotated[list[str], typer.Argument(metavar="KEY=VALUE...")]) -> int:
    """List measurements without a result, and fail if there are any"""
    from workflow.collocation.plan.session import open_session
    from workflow.collocation.plan.show import fault_lines
    from workflow.collocation.study.load import read_config_values

    lines = fault_lines(open_session(read_config_values(pairs)))
    print(end="".join(f"{line}\n" for line in lines), file=sys.stderr)
    return 1 if lines else 0


@step.command()
def fit(folders: Annotated[list[Path], typer.Argument(metavar="RESULTS/STUDY...")]) -> None:
    """estimates.parquet of studies → the predictor's constants"""
    from analysis.advice.fit import write_predictor

    terminal.show(write_predictor(folders))


@step.command()
def schemas() -> None:
    """Write workflow/schemas/, by which editors check config/"""
    from workflow.collocation.study.schemas import json_schemas as texts

    for path, text in texts():
        path.write_text(text, encoding="utf-8")
