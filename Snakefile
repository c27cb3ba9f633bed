# Measures what happens when several training jobs share one NVIDIA GPU.
#
#   snakemake                                    the study 'paper', or 'smoke' without a GPU
#   snakemake figures --config measure=false     figures and tables of the existing records
#
# workflow/collocation/plan/pending.py decides from the run.json files which cells still have to run.

import sys

from snakemake.utils import min_version

min_version("9.11")
sys.path.insert(0, str(workflow.current_basedir))

from workflow.collocation.plan import terminal
from workflow.collocation.plan.snakemake_internals import Invocation

terminal.quiet_end()
INVOCATION = Invocation(workflow)
INVOCATION.hush()


# All rules but `collocate` run where Snakemake does: a cluster's nodes may lack a network.
localrules:
    dataset,
    merge,
    estimate,
    draw,
    write_pages,
    explore,
    figures,
    report_contents,
    report,
    complete,


include: "workflow/rules/common.smk"
include: "workflow/rules/collocate.smk"
include: "workflow/rules/publish.smk"


rule all:
    default_target: True
    input:
        RECORDS,
        rules.figures.input,
        COMPLETE,
