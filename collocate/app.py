"""The application: its subcommands, and how each of them ends."""

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec

import typer

from collocate import ROOT, terminal

COMMANDS = (
    *("advise", "recipe", "run", "study", "plan", "figures", "report", "explain", "compare"),
    *("verify", "merge", "seal", "artifact", "export", "pages", "doctor", "steps"),
)
CARRIES_ON = "interrupted; the same command carries on"
BEGINS_ANEW = "interrupted; the same command begins anew"
ABOUT = "Measure how many training jobs to run on one GPU, and by which method."
START = """\b
Start with your own job, from its folder:
  collocate advise -- python train.py --lr 0.1

`collocate COMMAND --help` explains a command. Exit codes: 0 done,
1 failed, 2 something was typed wrong."""


class Mistyped(typer.BadParameter):
    """What a person typed wrong, as one sentence that names the option."""

    def format_message(self) -> str:
        return self.message


def require_packages(names: Sequence[str]) -> None:
    """Raise ValueError with those of these packages that are not installed."""
    if missing := [name for name in names if find_spec(name) is None]:
        raise ValueError(f"not installed: {', '.join(missing)}; `make install` in {ROOT} does")


def seconds_of(option: str, time: str, least_s: float) -> float:
    """Seconds of an option's value such as 90s, 3m or 2h. Raises Mistyped if it has fewer."""
    from workflow.collocation.study.definition import check_duration, parse_seconds

    try:
        seconds = parse_seconds(check_duration(time))
    except ValueError as error:
        raise Mistyped(f"{option} {time}: {error}") from None
    if seconds < least_s:
        raise Mistyped(f"{option} {time}: allowed: {least_s:g}s or more")
    return seconds


app = typer.Typer(
    help=ABOUT,
    epilog=START,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 72},
)


@app.callback(invoke_without_command=True)
def _without_a_command(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        print(context.get_help())


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code.

    arguments: the words after `collocate`; those of this process if None. A mistake in what was
    typed is one line on stderr and code 2; a failure is one line and code 1.
    """
    words = sys.argv[1:] if arguments is None else arguments
    interrupted = BEGINS_ANEW if words[:1] == ["advise"] else CARRIES_ON
    try:
        if "COLLOCATION_PARENT" in os.environ:
            from workflow.collocation.process_lifetime import end_with_starter

            end_with_starter()
        for name in COMMANDS:
            import_module(f"collocate.{name}")  # adds its command to `app`
        if not (ROOT / "Snakefile").is_file():
            raise ValueError("collocate runs from its clone: install it with `make install` there")
        code = app(args=arguments, prog_name="collocate", standalone_mode=False) or 0
        return _complain(code, interrupted) if code == 130 else code  # Typer answers Ctrl-C so
    except typer.TyperException as error:
        return _complain(getattr(error, "exit_code", 1), _mistake(error))
    except KeyboardInterrupt:
        return _complain(130, interrupted)
    except BrokenPipeError:  # as of `collocate plan | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:
        from workflow.collocation.study.errors import ConfigError, NotInForce

        if isinstance(error, ConfigError):
            return _complain(2, str(error))
        if isinstance(error, OSError | ValueError | NotInForce):
            return _complain(1, str(error))
        raise


def _mistake(error: typer.TyperException) -> str:
    """One line: what was typed wrong, and which command explains the options."""
    message = error.format_message() if hasattr(error, "format_message") else str(error)
    context = getattr(error, "ctx", None)
    path = context.command_path if context else "collocate"
    message = message.rstrip(".").replace("\n", "\\n")
    return f"{path}: {message}; see {path} --help"


def _complain(code: int, message: str) -> int:
    """Print why a command ended; gives its exit code."""
    terminal.complain(message)
    return code
