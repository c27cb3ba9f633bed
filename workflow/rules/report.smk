# The explorer, and Snakemake's report of all pages.
from importlib.util import find_spec

from snakemake.io import report as in_report  # at a line's start `report` is a directive

from analysis.web.explain import BELIEF, READABLE
from analysis.figures import CATEGORIES

# Its libraries are large, and a GPU node does without: there no explorer is made.
EXPLORER = ["explorer.html"] if find_spec("altair") and find_spec("vl_convert") else []
# Category of the report → page → file.
PAGES = {
    "Claims and guidelines": {name: READABLE[name] for name in ("claims", "guidelines")},
    "Why you can believe it": {
        "belief": BELIEF,
        "evidence": READABLE["evidence"],
        "variance": READABLE["variance"],
        "sittings": READABLE["sittings"],
    },
    "Explorer": {"explorer": name for name in EXPLORER},
    "Tables": {name: READABLE[name] for name in ("summary", "pair", "prediction", "telemetry")},
    "Data and environment": {"environment": READABLE["environment"], "runs": "runs.csv"},
}
CONTENTS = [
    in_report(
        f"{STUDY}/{name}",
        caption=f"../report/{page}.rst",
        category=category,
        labels={"page": page},
    )
    for category, pages in PAGES.items()
    for page, name in pages.items()
]
CONTENTS += [
    in_report(
        f"{STUDY}/figures/{stem(name, arm)}.svg",
        caption=f"../report/figures/{name}.rst",
        category="Figures",
        subcategory=category,
        labels={"figure": name.replace("_", " "), "arm": arm or "all"},
    )
    for category, names in CATEGORIES.items()
    for name, arm in stems(SITTING.arms)
    if name in names
]


report: "../report/workflow.rst"


localrules:
    explore,
    report_contents,
    make_report,
    report,


rule explore:
    # The study as one page: choose what is drawn, click for a timeline.
    input:
        runs=f"{STUDY}/runs.parquet",
        telemetry=f"{STUDY}/telemetry.parquet",
        reported=REPORTED,
    output:
        f"{STUDY}/explorer.html",
    log:
        f"{STUDY}/log/explore.log",
    conda:
        "../../envs/environment.yaml"
    params:
        analysis=ANALYSIS,
        expected=f"{STUDY}/plan.json",
        plan=SITTING.plan_digest,
    message:
        "explorer of study {SITTING.name}"
    shell:
        'exec "${{PYTHON:-python3}}" -m analysis.explorer --runs {input.runs:q} --expected {params.expected:q}'
        " --telemetry {input.telemetry:q} --reported {input.reported:q} --output {output:q} > {log:q}"


rule report_contents:
    # What Snakemake's report holds.
    input:
        CONTENTS,


rule make_report:
    # As a folder in a zip, or as one page; both open offline.
    input:
        CONTENTS,
    output:
        f"{STUDY}/report.{{ending}}",
    log:
        f"{STUDY}/log/make_report.{{ending}}.log",
    wildcard_constraints:
        ending="zip|html",
    conda:
        "../../envs/environment.yaml"
    params:
        snakefile=workflow.main_snakefile,
        settings=SITTING.settings(),
    message:
        "report of study {SITTING.name}: {output}"
    shell:
        'exec "${{PYTHON:-python3}}" -m snakemake --snakefile {params.snakefile:q} --cores 1 --report {output:q}'
        " --config {params.settings} measure=false -- report_contents > {log:q} 2>&1"


rule report:
    input:
        multiext(f"{STUDY}/report", ".zip", ".html"),
