"""`python -m bench.answers`: holds what `collocate advise` states against the truth, on a GPU.

Each job of jobs/, to which nothing was fitted, is asked about by the real command. Then a recipe
starts one copy of it afresh, and the advised set (where none is advised, the best that advise
measured): no turns, no counter, rates by the jobs' own clocks. `--best` measures a grid of sets of
a job that has an answer, to see how far the advised one is from the best; alone among the options,
it asks nothing, and takes the answers from --out.

Writes answers.json and answers.md after each job, which keep what earlier calls left there; beside
them are the records of advise. Another GPU: CUDA_VISIBLE_DEVICES. A job's error is at most one of
its pauses in the seconds that count.
"""

import argparse
import json
import shutil
import signal
import sys
import tempfile
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path

from bench.answers import scores, starts
from bench.answers.report import markdown
from bench.answers.starts import Failed, ScriptJob, ask, rates_of_pair, true_rate
from workflow.collocation.study.definition import check_duration, parse_seconds

FOLDER = Path(__file__).parent / "jobs"
JOBS = {
    name: ScriptJob([f"{name}.py"])
    for name in (
        "lora_gpt2",
        "cnn_validation",
        "compiled_encoder",
        "ppo",
        "gan",
        "lstm_bf16",
        "vit_loader",
        "unet_diffusion",
        "jax_mlp",
    )
}
JOBS |= {
    "fixed_steps": ScriptJob(["fixed_steps.py"], ends=True),
    "textclass": ScriptJob(["-m", "textclass"]),
}
BUDGET, SET_S, LONE_S, GRID_S = "3m", 60.0, 20.0, 20.0
GRID = [(jobs, method) for jobs in (2, 4, 6, 8) for method in ("naive", "mps")]
RECIPE_METHODS = {"naive": "separate", "mps": "mps"}
# What commands take beside the seconds that they are given, by estimate.
ADVISE_MORE_S, START_S, STOP_S = 15.0, 15.0, 5.0


def estimate_s(asked: int, of_best: int, budget_s: float, set_s: float) -> float:
    """Seconds that all takes. asked, of_best: number of jobs. set_s: of a set's fresh start."""
    fresh_s = START_S + starts.SETTLE_S + starts.WRITTEN_S + STOP_S
    ask_s = budget_s + ADVISE_MORE_S + fresh_s + LONE_S + fresh_s + set_s
    grid_s = (len(GRID) + 2) * (fresh_s + GRID_S)  # with one alone, and the advised set
    return asked * ask_s + of_best * grid_s


class Bench:
    """Fills answers by the name of a job; each keeps what was measured before something failed.

    answers: of earlier calls. folder: where jobs run, a copy of jobs/. results: for advise.
    """

    def __init__(self, answers: dict[str, dict], folder: Path, results: Path):
        self.answers, self.folder, self.results = answers, folder, results

    def hold_answer(self, name: str, options: argparse.Namespace) -> None:
        """Ask about a job, and start afresh one copy of it and the set of the answer."""
        answer = self.answers[name] = {"problems": []}
        try:
            advice, path, answer["wall_s"] = self._ask([JOBS[name]], name, options)
            answer["advice"] = advice
            lone_rate = self._fresh_rate(name, (1, "naive"), LONE_S)
            answer["lone"] = scores.compare(advice["alone"]["interval"], lone_rate)
            if key := scores.set_to_start(advice):
                is_advised = key == (advice["jobs"], advice["method"])
                words = [str(path)] if is_advised else self._recipe(advice, *key)
                rate = true_rate(words, key[0], JOBS[name], self.folder, options.seconds)
                answer["set"] = scores.score_set(advice, *key, rate, lone_rate)
                answer["predictions"] = scores.score_predictions(advice, {key: rate}, lone_rate)
        except Exception as failure:  # whatever it is, the next job goes on
            answer["problems"].append(_problem(failure))

    def hold_pair(self, pair: str, options: argparse.Namespace) -> None:
        """Ask about two jobs, and start both afresh by the method with the highest STP."""
        answer = self.answers[pair] = {"problems": []}
        jobs = [JOBS[name] for name in pair.split("+")]
        try:
            advice, _, answer["wall_s"] = self._ask(jobs, pair, options)
            answer["advice"] = advice
            if not advice["together"]:
                raise Failed(f"nothing was measured of both together: {advice['verdict']}")
            together = max(advice["together"], key=lambda each: each["stp"][0])
            method, cores = RECIPE_METHODS[together["method"]], advice["cores"]
            rates = rates_of_pair(jobs, method, cores, self.folder, options.seconds)
            answer["pair"] = scores.score_pair(advice, together, rates)
        except Exception as failure:  # whatever it is, the next job goes on
            answer["problems"].append(_problem(failure))

    def _ask(self, jobs: Sequence[ScriptJob], name: str, options: argparse.Namespace) -> tuple:
        settings = [f"gpu={options.gpu}"] if options.gpu != "auto" else []
        budget_s = parse_seconds(options.budget)
        return ask(jobs, self.folder, self.results / name, budget_s, options.max_jobs, settings)

    def find_best(self, name: str) -> None:
        """Start the sets of GRID, and what was advised, one after another."""
        answer = self.answers[name]
        if "advice" not in answer:
            return
        advice, rates = answer["advice"], {}
        advised = advice["jobs"], advice["method"]
        for key in dict.fromkeys([(1, "naive"), *GRID, advised]):
            try:
                rates[key] = self._fresh_rate(name, key, GRID_S)
            except Exception as failure:
                answer["problems"].append(f"{key[0]}x{key[1]}: {_problem(failure)}")
        answer["grid"] = [{"jobs": n, "method": m, "rate": r} for (n, m), r in rates.items()]
        if lone_rate := rates.get((1, "naive")):
            answer["share_of_best"] = scores.share_of_best(advice, rates)
            answer["predictions"] = scores.score_predictions(advice, rates, lone_rate)

    def _fresh_rate(self, name: str, key: tuple[int, str], seconds: float) -> float:
        recipe = self._recipe(self.answers[name]["advice"], *key)
        return true_rate(recipe, key[0], JOBS[name], self.folder, seconds)

    @staticmethod
    def _recipe(advice: Mapping, jobs: int, method: str) -> list[str]:
        options = ["--jobs", str(jobs), "--method", RECIPE_METHODS[method]]
        return [*options, "--cores", str(advice["cores"]), "--", *advice["run"]]


def _problem(failure: Exception) -> str:
    return str(failure) if isinstance(failure, Failed) else repr(failure)


def _pair(words: str) -> str:
    names = words.split("+")
    if len(names) != 2 or not {*names} <= {*JOBS}:
        raise argparse.ArgumentTypeError(f"{words}: allowed: A+B, of {', '.join(JOBS)}")
    return words


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; returns the exit code, 1 after a failure."""
    parser = argparse.ArgumentParser(
        "python -m bench.answers",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--jobs", nargs="+", choices=JOBS, help="to ask about (all, or none with --best)")
    add("--pairs", nargs="+", type=_pair, default=[], metavar="A+B", help="to ask about together")
    add("--best", nargs="+", choices=JOBS, default=[], help="jobs whose grid of sets is measured")
    add("--budget", type=check_duration, default=BUDGET, help=f"of each question ({BUDGET})")
    add("--seconds", type=float, default=SET_S, help=f"of the set's fresh start ({SET_S:g})")
    add("--max-jobs", type=int, default=8, help="of advise (8)")
    add("--gpu", choices=["auto", "cpu"], default="auto", help="of advise (auto)")
    add("--out", type=Path, default=Path("answers"), help="folder (answers)")
    options = parser.parse_args(argv)
    asked = options.jobs or ([] if options.best or options.pairs else [*JOBS])
    file = options.out / "answers.json"
    answers = json.loads(file.read_text("utf-8")) if file.exists() else {}
    if unknown := {*options.best} - {*asked, *answers}:
        parser.error(f"--best: no answer in {file}: {', '.join(sorted(unknown))}")
    # Children of a shell's background job would ignore it, and it is what ends a recipe.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    counts = len(asked) + len(options.pairs), len(options.best)
    seconds = estimate_s(*counts, parse_seconds(options.budget), options.seconds)
    print(f"{counts[0]} questions, {counts[1]} grids: about {seconds / 60:.1f} minutes", flush=True)
    options.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="answers-") as name:
        folder = Path(name, "jobs")
        shutil.copytree(FOLDER, folder, ignore=shutil.ignore_patterns("__pycache__"))
        results = options.out.resolve() / f"advise-{datetime.now():%F-%H%M%S}"
        bench = Bench(answers, folder, results)
        steps = [(job, lambda job=job: bench.hold_answer(job, options)) for job in asked]
        steps += [
            (pair, lambda pair=pair: bench.hold_pair(pair, options)) for pair in options.pairs
        ]
        steps += [(job, lambda job=job: bench.find_best(job)) for job in options.best]
        for job, step in steps:
            print(job, flush=True)
            step()
            file.write_text(json.dumps(answers, indent=1) + "\n", encoding="utf-8")
            file.with_suffix(".md").write_text(markdown(answers), encoding="utf-8")
    print(markdown(answers))
    return int(any(answers[name]["problems"] for name, _ in steps))


if __name__ == "__main__":
    sys.exit(main())
