"""What is made of a study's records: python -m analysis COMMAND --help"""

import argparse
import re
import signal
import sys
from importlib import import_module
from math import inf
from pathlib import Path
from typing import NoReturn

from analysis.files import printable
from workflow.collocation.process_lifetime import end_with_starter
from workflow.collocation.spec.errors import ConfigError

ROOT = Path(__file__).resolve().parents[1]

# Command → its module, where that is not called so. Its `run` takes the arguments, and returns what
# is to be printed. It is imported when it is used: drawing needs no more than matplotlib.
MODULES = {"merge": "records.merge", "estimate": "publish", "pages": "pages.render"}
MODULES |= {"advise": "advice_command", "advise-job": "job_advice.command", "recipe": "recipes"}


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """Raises ValueError: one line, `MAX: invalid int value: 'x'`, by make's name."""
        name = re.match(r"argument --([\w-]+)", message)
        told = name[1].upper().replace("-", "_") + message[name.end() :] if name else message
        raise ValueError(told)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="python -m analysis", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(name: str, about: str, of_study: bool = True):
        """Where its arguments are added."""
        made = commands.add_parser(name, help=about, description=about)
        if of_study:
            made.add_argument("--folder", required=True, type=Path, metavar="RESULTS/STUDY")
        return made.add_argument

    add = command("merge", "run.json of each cell → one table", of_study=False)
    add("--study", required=True)
    add("--output", required=True, type=Path, metavar="FILE.parquet")
    add("--list", required=True, type=Path, metavar="FILE", help="the path of a record a line")
    rules = {"type": Path, "default": ROOT / "config/claims.yaml"}
    add = command("estimate", "runs.parquet → estimates.parquet: every published number, once")
    add("--claims", **rules)
    add("--reported", type=Path, default=ROOT / "config/reported.csv")
    add = command("explain", "the cells, baselines and arithmetic behind a number")
    add("id", help="of a number; of a part of one, ids that have it are told")
    add = command("figures", "the figures that a study has data for, each with its data")
    add("--data-only", action="store_true", help="no pictures")
    add = command("pages", "results, claims, advice and tables from the estimates")
    add("--claims", **rules)
    add("--readme", action="store_true", help="write README.md and docs/ instead")
    add = command("explorer", "the study as one page")
    add("--output", required=True, type=Path, metavar="HTML")
    add = command("advise", "how many of a job, by which method")
    add("--job", default="", help="a workload of the study")
    add("--slowdown", default=inf, type=float, help="most of the slowest job")
    add("--memory", default=inf, type=float, help="most that may be used, GB")
    add = command("fit", "the predictor's constants → config/predictor.yaml", of_study=False)
    add("folders", nargs="+", type=Path, metavar="RESULTS/STUDY", help="what to fit to")
    add = command("advise-job", "the same of any job: measured here and now", of_study=False)
    add("--run", default="", metavar="COMMAND", help="of one job, as in a shell")
    add("--job", default="", help="a workload of config/workloads.yaml")
    add("--model", default="", help="one of timm's")
    add("--batch", type=int, help="samples of a step (1; of MODEL 32)")
    add("--size", default=224, type=int, metavar="PIXELS", help="of a model's images")
    add("--directory", default=".", metavar="FOLDER", help="where the command runs")
    add("--steps", default="", metavar="PATTERN", help="of its output, for a job without torch")
    add("--first-step", default=0, type=float, metavar="SECONDS", help="to wait for it; else 30")
    add("--slowdown", default=inf, type=float, help="most of the slowest job")
    add("--memory", default=inf, type=float, help="most that may be used, GB")
    add("--max", dest="most", default=8, type=int, metavar="JOBS", help="most jobs to think of")
    add("--budget", default="", metavar="TIME", help="for all of it: 90s, 3m (default)")
    add("--no-verify", dest="verify", action="store_false", help="predict, and measure no set")
    add("--config", default="", metavar="KEY=VALUE ...", help="as of a study: gpu=cpu results=...")
    add("--json", action="store_true", help="print the answer as JSON")
    add = command("compare", "two studies side by side", of_study=False)
    add("a", type=Path, metavar="A", help="folder of a study: results/STUDY")
    add("b", type=Path, metavar="B")
    add("--output", required=True, type=Path, metavar="FOLDER")
    add = command(
        "export", "a study's cells for an experiment tracker, in parts where some are there"
    )
    add("--to", required=True, choices=("mlflow", "radt"))
    add = command("recipe", "a script that starts so many jobs on one GPU", of_study=False)
    add("--system", default="bash", metavar="bash|slurm")
    add("--advice", type=Path, metavar="FILE", help="advice.json, which says all of what follows")
    add("--jobs", type=int, metavar="N")
    add("--method", help="separate (processes) or mps")
    add("--cores", type=int, metavar="N", help="logical CPUs of each job")
    add("--memory-gb", type=float, metavar="GB", help="GPU memory of one job; checked at the start")
    add("--folder", default=".", help="where jobs run")
    add("--run", default="", metavar="COMMAND", help="of one job, as in a shell")
    return parser


def main(argv: list[str] | None = None) -> int:
    """Run a command. What a person got wrong is one line on stderr, and the code 1."""
    try:
        given = _parser().parse_args(argv)
        text = import_module(f"analysis.{MODULES.get(given.command, given.command)}").run(given)
    except (OSError, ValueError, ConfigError) as error:
        lines = map(printable, str(error).split("\n"))
        sys.stderr.write("\n".join(lines) + "\n")
        return 1
    if given.command in ("advise", "explain") and (newer := _newer(given.folder)):
        print(f"{newer} cells are newer than these numbers: 'make figures' first", file=sys.stderr)
    if text:
        print(text)
    return 0


def _newer(folder: Path) -> int:
    """How many records were written after the estimates; 0 in a study that ships."""
    if (folder / "MANIFEST.sha256").exists():  # of which a clone sets all times anew
        return 0
    made = (folder / "estimates.parquet").stat().st_mtime
    found = folder.glob("cells/*/*/*/*/*/run.json")
    return sum(path.stat().st_mtime > made for path in found)


if __name__ == "__main__":
    end_with_starter()
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends it, and who draws for it, wordlessly
    sys.exit(main())
