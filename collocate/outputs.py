"""The steps from a study's records to its pages, with the paper's values and claims or without."""

from contextlib import chdir
from pathlib import Path


def write_estimates(folder: Path, paper: bool) -> None:
    """runs.parquet → estimates.parquet."""
    from analysis.advice import predict
    from analysis.estimates.build import publish_estimates
    from paper.estimates import ADDITIONS

    publish_estimates(folder, ADDITIONS if paper else (predict.predicted_estimates,))


def draw_figures(folder: Path, paper: bool, data_only: bool = False) -> str:
    """estimates.parquet → figures; gives the line that says which. data_only: no pictures."""
    from analysis.report.figures import draw
    from paper import figures

    return draw(folder, *([figures] if paper else []), data_only=data_only)


def write_pages(folder: Path, paper: bool) -> None:
    """estimates.parquet → pages and tables."""
    from analysis.report.pages.render import StudyPages
    from analysis.report.pages.render import write_pages as write
    from paper.pages import PaperPages

    write(PaperPages(folder) if paper else StudyPages(folder))


def derive(folder: Path, paper: bool) -> None:
    """Make all that `collocate verify` compares from the records of a folder `results/STUDY`.

    paper: with the paper's values and claims. Raises ValueError that names the step that failed.
    """
    from analysis.estimates.records.merge import write_runs
    from analysis.files import one_line
    from workflow.collocation.study.errors import ConfigError
    from workflow.collocation.study.layout import RUNS

    study = Path("results", folder.name)  # relative, as some texts name paths
    steps = {
        "records": lambda: write_runs(study.name, study / RUNS, study / "runs.parquet"),
        "estimates": lambda: write_estimates(study, paper),
        "figures": lambda: draw_figures(study, paper, data_only=True),
        "pages": lambda: write_pages(study, paper),
    }
    with chdir(folder.parents[1]):
        for name, step in steps.items():
            try:
                step()
            except (OSError, ValueError, ConfigError) as error:
                raise ValueError(f"{name}: {one_line(error)[:300]}") from None
