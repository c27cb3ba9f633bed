# The explorer, and Snakemake's report of all pages.
import csv

from snakemake.io import report as in_report  # at a line's start `report` is a directive

# Category of the report → page → file.
REPORT_PAGES = {
    "Results": {name: f"report/{name}.html" for name in ("results", "advice", "claims")},
    "Why you can believe it": {"belief": "report/belief.html"},
    "Explorer": {"explorer": "explorer.html"},
    "Data": {"estimates": "estimates.csv", "runs": "runs.csv"},
}
CONTENTS = [
    in_report(
        f"{STUDY}/{name}",
        caption=f"../report/{page}.rst",
        category=category,
        labels={"page": page},
    )
    for category, entries in REPORT_PAGES.items()
    for page, name in entries.items()
]
CONTENTS.append(FIGURES)
# Figures that were drawn: the report, which Snakemake makes when all else is there, holds them.
if Path(FIGURES).exists():
    with open(FIGURES, encoding="utf-8", newline="") as listed:
        CONTENTS += [
            in_report(
                f"{STUDY}/figures/{row['figure']}.png",
                caption="../report/figure.rst",
                category="Figures",
                labels={"figure": row["title"]},
            )
            for row in csv.DictReader(listed)
            if row["title"] and Path(STUDY, "figures", f"{row['figure']}.png").exists()
        ]


report: "../report/workflow.rst"


rule explore:
    # The study as one page: how many of a job, by which method?
    input:
        estimates=ESTIMATES,
    output:
        f"{STUDY}/explorer.html",
    log:
        f"{STUDY}/log/explore.log",
    params:
        analysis=ANALYSIS,
        folder=subpath(input.estimates, parent=True),
    shell:
        'exec "${{PYTHON:-python3}}" -m analysis --code {params.analysis} explorer --folder {params.folder:q} --output {output:q} > {log:q}'


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
    params:
        snakefile=workflow.main_snakefile,
        settings=SESSION.settings(),
    shell:
        '"${{PYTHON:-python3}}" -m snakemake --snakefile {params.snakefile:q} --cores 1 --report {output:q}'
        " --config {params.settings} measure=false -- report_contents > {log:q} 2>&1"
        " || {{ grep . {log:q} | tail -n 3 >&2; exit 1; }}"


rule report:
    # Says where the report is.
    input:
        multiext(f"{STUDY}/report", ".zip", ".html"),
    log:
        f"{STUDY}/log/report.log",
    shell:
        "echo 'The report, to be opened in a browser: '{input:q} | tee {log:q}"
