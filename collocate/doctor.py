"""`collocate doctor`: what this machine lacks for measuring."""

from collocate import studies, terminal
from collocate.app import app


@app.command()
def doctor(
    results: studies.Results = None,
    settings: studies.Settings = None,
) -> int:
    """Say what this machine lacks for measuring.

    It changes no setting of the GPU. Exit code 1: nothing can be measured here.
    """
    words = studies.checked(studies.config(studies.AUTO, settings, results))
    from workflow.collocation.plan.doctor import FAIL, Doctor
    from workflow.collocation.study.load import load_config, read_config_values

    worst = 0
    for name, (state, sentence) in Doctor(load_config(read_config_values(words))).findings():
        terminal.show(f"{state:<5} {name:<10} {' '.join(sentence.split())}")
        worst |= state == FAIL
    return worst
