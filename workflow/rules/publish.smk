# Makes tables, figures, pages, the explorer and Snakemake's report from the records of cells.
import time

# At the start of a line `report` is a directive of Snakemake.
from snakemake.io import report as in_report

# Category of the report → page → file.
REPORT_PAGES = {
    "Results": {name: f"report/{name}.html" for name in PAGE_NAMES if name != "belief"},
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
# The report holds the figures that exist when it is made; drawing again may remove some.
PICTURES = [
    in_report(picture, caption="../report/figure.rst", category="Figures", labels={"figure": title})
    for picture, title in DRAWN.items()
]
# Tables are made again if they come from other records, or from the future because the clock was set
# back: in these cases Snakemake cannot tell from the times of files.
TABLES_STALE = not SESSION.tables_current or any(
    Path(table).exists() and Path(table).stat().st_mtime > time.time()
    for table in (ESTIMATES, FIGURES)
)
# This file does not exist, so the rule that makes it runs: `merge` or, for missing figures, `draw`.
AGAIN = [f"{STUDY}/log/again.{SESSION.id}"] if TABLES_STALE or MISSING_FIGURES else []


report: "../report/workflow.rst"


rule merge:
    # Writes one row per member, window and cell, and the list of their records.
    input:
        records=RECORDS,
    output:
        *([temp(touch(AGAIN[0]))] if TABLES_STALE else []),
        runs=f"{STUDY}/runs.parquet",
        csv=f"{STUDY}/runs.csv",
        merged=f"{STUDY}/runs.txt",
    log:
        f"{STUDY}/log/merge.log",
    params:
        analysis=ANALYSIS,
        study=SESSION.name,
        records=f"{STUDY}/jobs/records.txt",
    shell:
        'echo "merging, estimating, drawing" >&2; cp -- {params.records:q} {output.merged:q};'
        ' exec "${{PYTHON:-python3}}" -m collocate step records --study {params.study:q} --list {output.merged:q}'
        " --output {output.runs:q} > {log:q}"


rule estimate:
    # Computes every published number once, with the cells that it comes from.
    input:
        runs=rules.merge.output.runs,
        given=GIVEN,
    output:
        estimates=ESTIMATES,
        csv=f"{STUDY}/estimates.csv",
    log:
        f"{STUDY}/log/estimate.log",
    params:
        analysis=ANALYSIS,
        folder=subpath(input.runs, parent=True),
        paper=PAPER,
        plan=SESSION.plan_digest,
    shell:
        'exec "${{PYTHON:-python3}}" -m collocate step estimates --folder {params.folder:q}'
        " {params.paper} > {log:q}"


rule draw:
    # Draws all figures that the study has data for, and lists them.
    input:
        estimates=ESTIMATES,
    output:
        *([] if TABLES_STALE or not MISSING_FIGURES else [temp(touch(AGAIN[0]))]),
        FIGURES,
    log:
        f"{STUDY}/log/draw.log",
    priority: 1
    threads: 2
    params:
        analysis=ANALYSIS,
        folder=subpath(input.estimates, parent=True),
        paper=PAPER,
    shell:
        'exec "${{PYTHON:-python3}}" -m collocate step figures --folder {params.folder:q} {params.paper} > {log:q}'


rule write_pages:
    # Writes the pages of results, claims and advice, why to believe them, and their tables.
    input:
        estimates=ESTIMATES,
        figures=FIGURES,
        given=GIVEN,
    output:
        PAGES,
    log:
        f"{STUDY}/log/write_pages.log",
    params:
        analysis=ANALYSIS,
        folder=subpath(input.estimates, parent=True),
        paper=PAPER,
    shell:
        'exec "${{PYTHON:-python3}}" -m collocate step pages --folder {params.folder:q} {params.paper} > {log:q}'


rule explore:
    # Makes one page on which a reader chooses a job, their number, and a method.
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
        'exec "${{PYTHON:-python3}}" -m collocate step explorer --folder {params.folder:q} --output {output:q} > {log:q}'


rule figures:
    # Draws figures and pages of the existing records; with measure=false no cell is planned.
    input:
        FIGURES,
        PAGES,
        CONTENTS,
        AGAIN,
        rules.merge.output,
        rules.estimate.output,


rule complete:
    # The last job: lists the cells without a result, and fails if there are any.
    input:
        FIGURES,  # not the files that it lists: the first run does not know them yet
        PAGES,
        rules.explore.output,
        records=RECORDS,
    output:
        touch(f"{STUDY}/complete"),
    log:
        f"{STUDY}/log/complete.log",
    params:
        settings=SESSION.settings(),
    shell:
        'exec "${{PYTHON:-python3}}" -m collocate step check {params.settings}'


rule report_contents:
    # The files that Snakemake's report holds.
    input:
        CONTENTS,
        PICTURES,


rule report:
    # Makes the report twice, as a zip of a folder and as one page; both work offline.
    input:
        CONTENTS,
        PICTURES,
    output:
        multiext(f"{STUDY}/report", ".zip", ".html"),
    log:
        f"{STUDY}/log/report.log",
    params:
        snakefile=INVOCATION.main_snakefile,
        settings=SESSION.settings(),
    shell:
        'for file in {output:q}; do "${{PYTHON:-python3}}" -m snakemake --snakefile {params.snakefile:q} --cores 1'
        ' --report "$file" --config {params.settings} measure=false -- report_contents > {log:q} 2>&1'
        " || {{ grep . {log:q} | tail -n 2 >&2; exit 1; }}; done;"
        " echo 'The report, to be opened in a browser: '{output:q}"
