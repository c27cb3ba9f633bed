"""`collocate plan`: what a study would run, and how long that takes."""

from collocate import studies, terminal
from collocate.app import app


@app.command()
def plan(
    name: studies.Name = studies.AUTO,
    budget: studies.Budget = "",
    gpus: studies.Gpus = "1",
    results: studies.Results = None,
    settings: studies.Settings = None,
) -> None:
    """List what a study would run, and what failed."""
    count = studies.number_of_gpus(gpus)
    words = studies.checked(studies.config(name, settings, results, budget=budget))
    from workflow.collocation.plan.session import open_session
    from workflow.collocation.plan.show import plan_table
    from workflow.collocation.study.load import read_config_values

    terminal.show(plan_table(open_session(read_config_values(words), count)))
