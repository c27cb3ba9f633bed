# From the records of cells to tables, figures, pages, the explorer, and Snakemake's report of them.
import time

from snakemake.io import report as in_report  # at a line's start `report` is a directive

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
# Figures that were drawn: the report, which Snakemake makes when all else is there, holds them. Who
# draws anew may lose some of them.
PICTURES = [
    in_report(picture, caption="../report/figure.rst", category="Figures", labels={"figure": title})
    for picture, title in DRAWN.items()
]
# Times of files do not tell of figures that are gone, nor of tables of other records, which may be
# newer in a copy, or of the future where the clock was set back.
STALE = not SESSION.merged or any(
    Path(table).exists() and Path(table).stat().st_mtime > time.time()
    for table in (ESTIMATES, FIGURES)
)
# A file that is not there: the rule that makes it runs.
AGAIN = [f"{STUDY}/log/again.{SESSION.id}"] if STALE or LOST else []


report: "../report/workflow.rst"


rule merge:
    # One row per member, window and cell, and the list of their records.
    input:
        records=RECORDS,
    output:
        *([temp(touch(AGAIN[0]))] if STALE else []),
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
    # Every number that is published, once, with the cells that it comes from.
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
    # All figures that the study has data for. Which those are, the file says that is named here.
    input:
        estimates=ESTIMATES,
    output:
        *([] if STALE or not LOST else [temp(touch(AGAIN[0]))]),
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
    # Results, claims, advice, and why to believe them; their tables.
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
        'exec "${{PYTHON:-python3}}" -m collocate step explorer --folder {params.folder:q} --output {output:q} > {log:q}'


rule figures:
    # Figures and pages of what is there: plans no cell with measure=false.
    input:
        FIGURES,
        PAGES,
        CONTENTS,
        AGAIN,
        rules.merge.output,
        rules.estimate.output,


rule complete:
    # The last job: fails, and lists what failed, if a cell has no result.
    input:
        FIGURES,  # not what it lists: the first run does not know it yet
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
    # What Snakemake's report holds.
    input:
        CONTENTS,
        PICTURES,


rule report:
    # As a folder in a zip, and as one page; both open offline.
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
