"""The application: its subcommands, and how each of them ends."""

import os
import sys
from collections.abc import Sequence
from importlib import import_module

import typer

from collocate import ROOT, terminal

COMMANDS = (
    *("advise", "recipe", "study", "plan", "figures", "report", "explain", "compare"),
    *("verify", "merge", "seal", "artifact", "export", "pages", "doctor", "steps"),
)
INTERRUPTED = "interrupted; the same command carries on"
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
    """Run one command line; gives the exit code.

    arguments: the words after `collocate`; those of this process if None. What a person typed
    wrong is one line on stderr and code 2; what failed is one line and code 1.
    """
    try:
        if "COLLOCATION_PARENT" in os.environ:
            from workflow.collocation.process_lifetime import end_with_starter

            end_with_starter()
        for name in COMMANDS:
            import_module(f"collocate.{name}")  # adds its command to `app`
        if not (ROOT / "Snakefile").is_file():
            raise ValueError("collocate runs from its clone: install it with `make install` there")
        code = app(args=arguments, prog_name="collocate", standalone_mode=False) or 0
        return _ended(code, INTERRUPTED) if code == 130 else code  # Typer answers Ctrl-C so
    except typer.TyperException as error:
        return _ended(getattr(error, "exit_code", 1), _usage(error))
    except KeyboardInterrupt:
        return _ended(130, INTERRUPTED)
    except BrokenPipeError:  # as of `collocate plan | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:
        from workflow.collocation.study.errors import ConfigError, NotInForce

        if isinstance(error, ConfigError):
            return _ended(2, str(error))
        if isinstance(error, OSError | ValueError | NotInForce):
            return _ended(1, str(error))
        raise


def _usage(error: typer.TyperException) -> str:
    """What was typed wrong, and where the options are explained."""
    message = error.format_message() if hasattr(error, "format_message") else str(error)
    context = getattr(error, "ctx", None)
    path = context.command_path if context else "collocate"
    message = message.rstrip(".").replace("\n", "\\n")
    return f"{path}: {message}; see {path} --help"


def _ended(code: int, message: str) -> int:
    terminal.complain(message)
    return code
