# One sitting of the study: its config checked, its cells planned, its folder locked.
import os
import re
import sys
from contextlib import ExitStack
from pathlib import Path

from snakemake.exceptions import WorkflowError
from snakemake_interface_executor_plugins.settings import DeploymentMethod

sys.path.insert(0, workflow.basedir)
from analysis import code, figures as drawn, pages
from release.sealed import notice
from workflow.collocation.lock import Busy, folder_lock
from workflow.collocation.settings import ConfigError
from workflow.collocation.show import banner
from workflow.collocation.sitting import open_sitting

if DeploymentMethod.CONDA in workflow.deployment_settings.deployment_method:
    print(
        "--sdm conda is not supported: jobs run under the Python that runs Snakemake; "
        "conda env create -f envs/environment.yaml, and run snakemake in that environment",
        file=sys.stderr,
    )
    sys.exit(1)

# One cell at a time, also where --resources gpu=1 was forgotten.
workflow.global_resources.setdefault("gpu", 1)

try:
    SITTING = open_sitting(config)
except ConfigError as error:
    print(error, file=sys.stderr)
    sys.exit(1)

SITTING.set_environment()
if workflow.is_main_process:  # jobs of some executors read the Snakefile again
    print(banner(SITTING), file=sys.stderr)

STUDY = SITTING.folder.as_posix()
CELLS = SITTING.cells_folder.as_posix()
# From the working directory: the report, which may be handed on, names them.
CONFIG = os.path.relpath(Path(workflow.basedir, "config"))
REPORTED, CLAIMS = f"{CONFIG}/reported.csv", f"{CONFIG}/claims.yaml"
# Of what merges, estimates, draws and writes: results of other code are made anew.
ANALYSIS = code.digest()
RUNS, TELEMETRY = f"{STUDY}/runs.parquet", f"{STUDY}/telemetry.parquet"
ESTIMATES = f"{STUDY}/estimates.parquet"
FIGURES = expand(
    "{study}/figures/{figure}.{ending}",
    study=STUDY,
    figure=[*drawn.NAMES, *drawn.APPENDIX],
    ending=["csv", "png", "pdf", "svg"],
)
PAGES = [f"{STUDY}/{name}" for name in pages.FILES]
# Who only draws what is there does not say that it is all.
COMPLETE = [f"{STUDY}/complete"] if SITTING.measuring else []
HELD = ExitStack()


onstart:
    try:
        HELD.enter_context(folder_lock(SITTING.folder, SITTING.holder()))
    except Busy as busy:
        raise WorkflowError(f"study '{SITTING.name}' is being run already: {busy}")
    if missing := SITTING.missing_packages():
        raise WorkflowError(
            f"{len(SITTING.jobs)} cells to run, but not installed: {', '.join(missing)}; "
            "'make study' installs what measuring needs, 'make figures' needs none of it"
        )
    if not SITTING.still_planned():
        raise WorkflowError("another run has just finished cells of this study; start again")
    SITTING.write_plan()
    SITTING.write_mig_layouts()
    SITTING.pin_sources()
    if said := notice(SITTING.folder):  # after the plan is written, which is one of its files
        print(said, file=sys.stderr)
    # Elsewhere than on this machine no job could use it.
    preloaded = HELD.enter_context(SITTING.zygote()) if workflow.local_exec else None
    SITTING.write_jobs(preloaded and preloaded.name)


onsuccess:
    SITTING.sweep_postponed()
    HELD.close()
    if SITTING.merged:
        print(pages.closing(SITTING.folder))
    if SITTING.later:
        print(
            f"{len(SITTING.later)} cells are left for later (budget): the same command carries on"
        )


onerror:
    SITTING.sweep_postponed()
    HELD.close()
    print("not finished; the same command carries on where this one stopped", file=sys.stderr)
