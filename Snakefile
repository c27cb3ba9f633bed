# What happens when several training jobs share one NVIDIA GPU: the study as a DAG.
#
#   snakemake                                    the study 'paper', or 'smoke' without a GPU
#   snakemake figures --config measure=false     figures and tables of what is there; plans no cell
#
# What still has to run is decided by workflow/collocation/plan/pending.py, from the run.json files.

import sys

from snakemake.exceptions import WorkflowError
from snakemake.utils import min_version

min_version("9.11")
if not Path(workflow.basedir, "workflow", "collocation").is_dir():
    raise WorkflowError("no module of another workflow: clone this repository and run it there")
sys.path.insert(0, workflow.basedir)

from workflow.collocation.plan import terminal

terminal.hush(workflow)


configfile: Path(workflow.basedir, "config", "config.yaml")


# All but the cells is done where Snakemake runs: there is a network, which a cluster's nodes may lack.
localrules:
    dataset,
    merge,
    merge_telemetry,
    estimate,
    draw,
    write_pages,
    figures,
    explore,
    report_contents,
    make_report,
    report,
    complete,


include: "workflow/rules/common.smk"
include: "workflow/rules/datasets.smk"
include: "workflow/rules/collocate.smk"
include: "workflow/rules/merge.smk"
include: "workflow/rules/report.smk"
include: "workflow/rules/figures.smk"


rule all:
    default_target: True
    input:
        RECORDS,
        FIGURES,
        PAGES,
        CONTENTS,
        COMPLETE,
