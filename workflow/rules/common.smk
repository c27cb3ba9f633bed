# One session of the study: its config checked, its cells planned, its folder locked.
import atexit
import os
import signal
import sys
import threading
from contextlib import ExitStack
from pathlib import Path

import paper
from analysis import source_digest
from analysis.report import pages
from workflow.collocation.study.errors import ConfigError, NotInForce
from workflow.collocation.study.load import read_config_values
from workflow.collocation.gpu.lock import LockHeld, folder_lock
from workflow.collocation.plan import jobs
from workflow.collocation.plan.show import banner, damage_note
from workflow.collocation.plan.session import open_posted, open_session

REMOTE = INVOCATION.on_cluster
try:
    INVOCATION.refuse_use_as_module(Path(workflow.current_basedir).parents[1])
    INVOCATION.require_one_gpu("collocate")
    # Without --resources gpu=N one cell runs at a time.
    max_gpus = INVOCATION.resource("gpu", 1)
    # Snakemake's directive `configfile` prints tracebacks for most mistakes.
    values = read_config_values([]) | config
    if INVOCATION.is_main_process:
        SESSION = open_session(values, max_gpus, REMOTE)
        print(banner(SESSION), file=sys.stderr)
    else:
        # Jobs of these executors read the Snakefile again.
        SESSION = open_posted(values)
    # Unreadable files of datasets or figures are reported here, without a traceback.
    SESSION.datasets.ready_files()
    DRAWN, MISSING_FIGURES = pages.drawn(SESSION.folder)
except (ConfigError, NotInForce, OSError, ValueError) as error:
    print(error, file=sys.stderr)
    sys.exit(1)

jobs.set_environment()
STUDY = SESSION.folder.as_posix()
CELLS = SESSION.cells_folder.as_posix()
# Paths are relative to the working directory, since the report shows them to others.
GIVEN = ["analysis/advice/predictor.yaml"]
if SESSION.study.paper:
    GIVEN += ["paper/reported.csv", "paper/claims.yaml"]
GIVEN = [os.path.relpath(Path(workflow.basedir, name)) for name in GIVEN]
PAPER, PAGE_NAMES = ("--paper", paper.PAGES) if SESSION.study.paper else ("", pages.PAGES)
# Digest of the analysis code; results made by other code are rebuilt.
ANALYSIS = source_digest.analysis_digest()
ESTIMATES = f"{STUDY}/estimates.parquet"
# Measured records are source files to Snakemake, which then looks for no rule that makes them.
RECORDS = [*map(before_update, SESSION.measured_records), *SESSION.planned_records]
# The data decide which figures there are; this file lists them.
FIGURES = f"{STUDY}/{pages.FIGURES}"
PAGES = [f"{STUDY}/{name}" for name in pages.files(PAGE_NAMES)]
# A run that only draws does not mark the study complete.
COMPLETE = [f"{STUDY}/complete"] if SESSION.measuring else []
# Each GPU is a resource of its own, so a cell is not started while its GPU is in use.
CARDS = {f"card{number}": SESSION.card_resource(number) for number in range(len(SESSION.devices))}
for card in CARDS:
    INVOCATION.set_resource(card, 1)
if not REMOTE:
    INVOCATION.set_resource("gpu", max(1, min(SESSION.max_gpus, len(SESSION.devices))))
HELD = ExitStack()
atexit.register(HELD.close)


onstart:
    # Snakemake's handler takes a lock that the interrupted code may hold. In a thread of its own it
    # cannot block for ever.
    terminate = signal.getsignal(signal.SIGTERM)
    signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=terminate).start())
    problem = SESSION.forbidden
    if REMOTE and INVOCATION.runs_locally:
        problem = "--jobs is for a cluster's executor; here it is --cores"
    try:
        if not problem:
            HELD.enter_context(folder_lock(SESSION.folder, jobs.lock_holder(SESSION)))
            problem = jobs.obstacle(SESSION)
        if not problem:
            jobs.date_future_files_now(SESSION, GIVEN)
            jobs.write_plan(SESSION)
            # Only local jobs can use the preloaded server.
            server = None
            if INVOCATION.runs_locally:
                server = HELD.enter_context(jobs.preloaded_server(SESSION))
            jobs.write_job_files(SESSION, server)
    except LockHeld as error:
        problem = f"study '{SESSION.name}' is being run already: {error}"
    except (OSError, ValueError) as error:
        problem = str(error)
    if problem:
        print(problem, file=sys.stderr)
        sys.exit(1)


onsuccess:
    unmeasured, hindered = jobs.sweep_postponed(SESSION)
    HELD.close()
    if SESSION.tables_current:
        print(pages.closing(SESSION.folder))
    if damage := damage_note(SESSION):
        print(damage, file=sys.stderr)
    if unmeasured:
        print(unmeasured, file=sys.stderr if hindered else sys.stdout)
    # No job failed, but something other than the budget kept cells from running.
    if hindered:
        sys.exit(1)


onerror:
    unmeasured, hindered = jobs.sweep_postponed(SESSION)
    Path(STUDY, "complete").unlink(missing_ok=True)
    HELD.close()
    stopped = "not finished; the same command carries on where this one stopped"
    print(unmeasured if hindered else stopped, file=sys.stderr)
