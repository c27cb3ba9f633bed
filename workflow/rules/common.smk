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
from workflow.collocation.study.load import read_values
from workflow.collocation.gpu.lock import Busy, folder_lock
from workflow.collocation.plan import jobs
from workflow.collocation.plan.show import banner, damage
from workflow.collocation.plan.session import open_posted, open_session

REMOTE = INVOCATION.on_cluster
try:
    INVOCATION.refuse_import(Path(workflow.current_basedir).parents[1])
    INVOCATION.require_one_gpu("collocate")
    # One cell at a time, also where --resources gpu=1 was forgotten.
    gpus = INVOCATION.resource("gpu", 1)
    # Not by `configfile`: of most mistakes Snakemake's own reader gives a traceback.
    values = read_values([]) | config
    if INVOCATION.is_main_process:
        SESSION = open_session(values, gpus, REMOTE)
        print(banner(SESSION), file=sys.stderr)
    else:  # jobs of these executors read the Snakefile again
        SESSION = open_posted(values)
    SESSION.datasets.ready_files()  # refused here, and not by a traceback, where they are none
    DRAWN, LOST = pages.drawn(SESSION.folder)
except (ConfigError, NotInForce, OSError, ValueError) as error:
    print(error, file=sys.stderr)
    sys.exit(1)

jobs.set_environment()
STUDY = SESSION.folder.as_posix()
CELLS = SESSION.cells_folder.as_posix()
# From the working directory: the report, which may be handed on, names them.
HOUSE = os.path.relpath(Path(workflow.basedir))
GIVEN = [f"{HOUSE}/analysis/advice/predictor.yaml"]
if SESSION.study.paper:  # beside its values, with verdicts on its claims
    GIVEN += [f"{HOUSE}/paper/reported.csv", f"{HOUSE}/paper/claims.yaml"]
PAPER, PAGE_NAMES = ("--paper", paper.PAGES) if SESSION.study.paper else ("", pages.PAGES)
# Of what merges, estimates, draws and writes: results of other code are made anew.
ANALYSIS = source_digest.analysis_digest()
ESTIMATES = f"{STUDY}/estimates.parquet"
# A measured cell is a source file: no rule is looked for that makes it.
RECORDS = [*map(before_update, SESSION.measured), *SESSION.coming]
# Which figures there are, a study's data decide: they are listed in this file.
FIGURES = f"{STUDY}/{pages.FIGURES}"
PAGES = [f"{STUDY}/{name}" for name in pages.files(PAGE_NAMES)]
# Who only draws what is there does not say that it is all.
COMPLETE = [f"{STUDY}/complete"] if SESSION.measuring else []
# A resource for each GPU, of which there is one: a cell never waits for another's end on its card.
CARDS = {f"card{number}": SESSION.on_card(number) for number in range(len(SESSION.devices))}
for card in CARDS:
    INVOCATION.set_resource(card, 1)
MANY = max(1, min(SESSION.gpus, len(SESSION.devices)))
if not REMOTE:
    INVOCATION.set_resource("gpu", MANY)
HELD = ExitStack()
atexit.register(HELD.close)


onstart:
    # Snakemake's own takes a lock, which what it interrupts may hold: it would wait for ever.
    end = signal.getsignal(signal.SIGTERM)
    signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=end).start())
    said = SESSION.forbidden
    if REMOTE and INVOCATION.runs_locally:
        said = "--jobs is for a cluster's executor; here it is --cores"
    try:
        if not said:
            HELD.enter_context(folder_lock(SESSION.folder, jobs.holder(SESSION)))
            said = jobs.obstacle(SESSION)
        if not said:
            jobs.bring_back_to_now(SESSION, GIVEN)
            jobs.write_plan(SESSION)
            # Elsewhere than on this machine no job could use it.
            warm = (
                HELD.enter_context(jobs.preloaded(SESSION)) if INVOCATION.runs_locally else None
            )
            jobs.write(SESSION, warm)
    except Busy as busy:
        said = f"study '{SESSION.name}' is being run already: {busy}"
    except (OSError, ValueError) as error:
        said = str(error)
    if said:
        print(said, file=sys.stderr)
        sys.exit(1)


onsuccess:
    left, hindered = jobs.sweep_postponed(SESSION)
    HELD.close()
    if SESSION.merged:
        print(pages.closing(SESSION.folder))
    if said := damage(SESSION):
        print(said, file=sys.stderr)
    if left:
        print(left, file=sys.stderr if hindered else sys.stdout)
    if hindered:  # nothing failed, and it is not finished
        sys.exit(1)


onerror:
    left, hindered = jobs.sweep_postponed(SESSION)
    Path(STUDY, "complete").unlink(missing_ok=True)
    HELD.close()
    stopped = "not finished; the same command carries on where this one stopped"
    print(left if hindered else stopped, file=sys.stderr)
