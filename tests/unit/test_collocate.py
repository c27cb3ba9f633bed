"""The command line: what is typed reaches the study as it is, mistakes are one line, text fits."""

import json
import os
import re
import sys

import jsonschema
import pytest
import yaml

from analysis.advice.job import text
from collocate import app, terminal
from collocate.app import COMMANDS
from tests.studio import REPOSITORY
from workflow.collocation.study import schemas
from workflow.collocation.study.load import read_config_values

ODD = [
    *("a b", " lead", "trail ", "tab\there", "two\nlines", "\r", "'", '"', "it's", 'say "x"'),
    *("$(touch pwned)", "`touch pwned`", "; touch pwned", "&& touch pwned", "| touch pwned"),
    *("$HOME", "${HOME}", "$$", "%s", "%(x)s", "!x", "#x", "\\", "a\\b", "\\n", "*", "?", "[a]"),
    *("{a}", "{{", "}", "{", "<x", ">x", "~", "~/x", "-x", "--set", "a=b", "é", "語", ""),
]


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """Type a command in an empty folder; gives its exit code, answer and complaints."""
    monkeypatch.chdir(tmp_path)

    def typed(*words: str) -> tuple[int, str, str]:
        monkeypatch.chdir(tmp_path)
        code = app.main([*words])
        return code, *capsys.readouterr()

    yield typed
    assert not list(tmp_path.rglob("pwned")) and not (REPOSITORY / "pwned").exists()


@pytest.fixture
def snakemake(monkeypatch) -> list[list[str]]:
    """In place of becoming Snakemake: the words that it would have been given."""
    commands = []
    monkeypatch.setattr(os, "execv", lambda path, words: commands.append(words))
    return commands


def test_help_fits_a_terminal_and_names_every_command(run):
    code, out, err = run()
    assert (code, err) == (0, "")
    printed = {name: run(name, "--help") for name in COMMANDS if name != "steps"}
    assert all(f"\n  {name} " in out for name in printed)
    for code, help_text, err in [(0, out, ""), *printed.values()]:
        assert (code, err) == (0, "")
        assert max(map(len, help_text.splitlines())) <= terminal.WIDEST
        shortened = re.findall(r"\w\.\.\.$", help_text, re.M)
        assert shortened in ([], ["D..."]), shortened  # COMMAND...


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["explian"], "explain"),
        (["explain", "ladder"], "ID"),
        (["explain", "laddr", "stp:x"], "ladder"),
        (["plan", "smok"], "'smoke'"),
        (["plan", "--gpus", "two"], "--gpus two"),
        (["plan", "--set", "gpu"], "--set gpu"),
        (["plan", "--set", "gpuu=1"], "gpuu"),
        (["plan", "--budget", "25"], "budget"),
        (["study", "--budget", "25"], "budget"),
        (["figures", "--measure"], "--measure"),
        (["artifact", "laddr"], "laddr"),
        (["export", "ladder", "--to", "tensorboard"], "'mlflow'"),
        (["advise"], "COMMAND"),
        (["advise", "--model", "resnet50", "--workload", "x"], "--model"),
        (["advise", "--max-jobs", "1", "--", "true"], "--max-jobs"),
        (["advise", "--max-slowdown", "nan", "--", "true"], "--max-slowdown"),
        (["advise", "--budget", "5", "--", "true"], "90s"),
        (["advise", "--budget", "5s", "--", "true"], "60s or more"),
        (["advise", "--set", "study=x", "--", "true"], "study=x"),
        (["advise", "--", "python", "none.py"], "none.py"),
        (["advise", "--", "no-such-program"], "PATH"),
        (["advise", "--steps", "iter (.d+", "--", "true"], "steps"),
        (["advise", "--model", "resnet50", "--steps", "x"], "--steps: --model takes no"),
        (["advise", "--workload", "x", "--batch", "8"], "--batch: --workload takes no"),
        (["advise", "--size", "32", "--", "true"], "--size: a command takes no"),
        (["advise", "--study", "ladder", "--budget", "2m"], "--budget: --study takes no"),
        (["explain", "ladder", "stp:none"], "'stp:none'"),
        (["figures", "smoke", "--results", "none"], "none/smoke: no results of a study"),
        (["report", "smoke", "--results", "none"], "none/smoke: no results of a study"),
        (["merge", "none.tar"], "none.tar: no such file"),
        (["pages", "ladder", "--advice", "none.json"], "none.json"),
        (["recipe", "none.json"], "none.json: no such file"),
        (["recipe", "--jobs", "2", "none.json"], "--jobs"),
        (["recipe", "--jobs", "4", "--", "python", "train.py"], "--method"),
        (["recipe", "--jobs", "0", "--method", "mps", "--", "true"], "--jobs"),
    ],
)
def test_what_is_typed_wrong_is_one_line_and_code_2(run, snakemake, words, named):
    code, out, err = run(*words)
    assert (code, out, err.count("\n")) == (2, "", 1), err
    assert named in err and not snakemake


def test_what_fails_is_one_line_and_code_1(run):
    recorded = str(REPOSITORY / "docs" / "recorded_advice.json")
    for words in (["recipe", recorded], ["compare", "ladder", "."]):
        code, _, err = run(*words)
        assert code == 1 and err.count("\n") == 1, err


@pytest.mark.parametrize("option", ["--results", "--budget", "--gpus", "--set"])
@pytest.mark.parametrize("command", ["plan", "study", "figures"])
def test_no_value_of_a_study_is_read_by_a_shell(run, snakemake, command, option):
    """It is refused in one line, or stands as it is in one word of Snakemake's."""
    if command == "figures" and option in ("--budget", "--gpus"):
        pytest.skip("no option of this command")
    for value in ODD:
        argument = f"workloads={value}" if option == "--set" else value
        code, out, err = run(command, "smoke", option, argument)
        assert "Traceback" not in out + err
        if code:
            assert code in (1, 2) and err.count("\n") == 1, (value, err)
    for words in snakemake:
        pairs = words[words.index("--config") + 1 :]
        pairs = pairs[: pairs.index("--")] if "--" in pairs else pairs
        assert all("=" in pair for pair in pairs)
        read_config_values(pairs)


@pytest.mark.parametrize("value", ODD)
def test_a_command_is_taken_word_by_word(run, monkeypatch, tmp_path, value):
    """advise measures it, and the recipe starts it, with the words that were typed."""
    requests = []

    def stop(request, *_):
        requests.append(request)
        raise ValueError("far enough")

    monkeypatch.setattr("collocate.probing.ask", stop)
    (tmp_path / "train.py").write_text("")
    code, _, err = run("advise", "--", sys.executable, "train.py", "--name", value)
    assert (code, err) == (1, "far enough\n")
    assert requests[0].command[1:] == ["train.py", "--name", value]
    code, script, err = run("recipe", "--jobs", "2", "--method", "mps", "--", "echo", value)
    assert (code, err) == (0, "")


def test_lines_are_cut_between_words_and_columns_stay():
    table = "  one   1\n  two  22"
    long = "word " * 40 + "/a/path/that/is/longer/than/any/line/" * 3
    printed = terminal.wrapped(f"{table}\n{long}", 40).splitlines()
    assert printed[:2] == table.splitlines()
    assert (
        all(len(line) <= 40 for line in printed[2:-1]) and printed[-1].strip() == long.split()[-1]
    )


ADVICE = {
    "asked": "python t.py",
    "card": "NVIDIA X",
    "cores": 2,
    "verdict": "Run 4 under MPS: 2.94 times the work of one alone.",
    "notes": ["Rewrite first: it waits for its host 55% of the time."],
    "alone": {
        "rate": 72.0,
        "interval": [72.0, 70.2, 73.9],
        "unit": "steps/s",
        "optimizer": "AdamW",
        "gract": 0.45,
        "cores": 1.0,
        "memory_gb": 2.9,
        "joules": 3.6,
        "beside_rate": 70.1,
    },
    "predicted": [
        {"jobs": n, "method": method, "stp": float(n), "error": 0.2}
        for n in range(2, 49)
        for method in ("naive", "mps")
    ],
    "measured": [
        {
            "jobs": n,
            "method": "mps",
            "rate": [206e3, None, None],
            "joules": 2.81,
            "stp": [2.94, 2.62, 3.29],
            "slowdown": [1.43, 1.28, 1.60],
            "memory_gb": 12.0,
        }
        for n in (4, 48)
    ],
    "seconds": {"wall": 170.2, "counted": 99.9},
}


def test_an_advice_has_its_verdict_first_and_fits_a_terminal():
    printed = terminal.wrapped(text.terminal(ADVICE), 72)
    assert printed.startswith(ADVICE["verdict"])
    assert max(map(len, printed.splitlines())) <= 72
    assert "4 under MPS" in printed and "2.94 [2.62, 3.29]" in printed
    pages = text.markdown(ADVICE)
    assert "1.43 [1.28, 1.60]" in pages and "| --- |" in pages


def test_schemas_are_those_of_the_models_and_hold_for_the_files_that_ship():
    config = REPOSITORY / "config"
    files = {"config": [config / "config.yaml"], "workloads": [config / "workloads.yaml"]}
    files["study"] = sorted((config / "studies").glob("*.yaml"))
    for path, content in schemas.json_schemas():
        assert path.read_text("utf-8") == content, "collocate step schemas"
        for file in files[path.name.partition(".")[0]]:
            jsonschema.validate(yaml.safe_load(file.read_text("utf-8")), json.loads(content))
            named = file.read_text("utf-8").splitlines()[0].partition("$schema=")[2]
            assert (file.parent / named).resolve() == path
