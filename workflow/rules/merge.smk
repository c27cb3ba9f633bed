rule merge:
    # One row per member, window and cell. The list of records is in runs.txt: it can be long.
    input:
        records=RECORDS,
    output:
        runs=RUNS,
        csv=f"{STUDY}/runs.csv",
    log:
        f"{STUDY}/log/merge.log",
    params:
        analysis=ANALYSIS,
        runs=f"{STUDY}/runs.txt",
        study=SESSION.name,
    message:
        "merging, estimating, drawing"
    shell:
        'exec "${{PYTHON:-python3}}" -m analysis --code {params.analysis} merge --study {params.study:q} --list {params.runs:q}'
        " --output {output.runs:q} > {log:q}"


rule merge_telemetry:
    # What the GPU did over time: all cells' readings in one file, an empty one without a GPU.
    input:
        records=RECORDS,
    output:
        telemetry=TELEMETRY,
    log:
        f"{STUDY}/log/merge_telemetry.log",
    params:
        analysis=ANALYSIS,
        runs=f"{STUDY}/runs.txt",
        study=SESSION.name,
    shell:
        'exec "${{PYTHON:-python3}}" -m analysis --code {params.analysis} telemetry --study {params.study:q} --list {params.runs:q}'
        " --output {output.telemetry:q} > {log:q}"


rule estimate:
    # Every number that is published, once, with the cells that it comes from.
    input:
        runs=RUNS,
        reported=REPORTED,
        claims=CLAIMS,
        bench=[path.as_posix() for path in Path(STUDY, "bench").glob("*.json")],
    output:
        estimates=ESTIMATES,
        csv=f"{STUDY}/estimates.csv",
    log:
        f"{STUDY}/log/estimate.log",
    params:
        analysis=ANALYSIS,
        folder=subpath(input.runs, parent=True),
        plan=SESSION.plan_digest,
    shell:
        'exec "${{PYTHON:-python3}}" -m analysis --code {params.analysis} estimate --folder {params.folder:q} --claims {input.claims:q}'
        " --reported {input.reported:q} > {log:q}"


rule complete:
    # The last job: fails, and lists what failed, if a cell has no result.
    input:
        records=RECORDS,
        figures=FIGURES,
        pages=PAGES,
        telemetry=TELEMETRY,
    output:
        touch(f"{STUDY}/complete"),
    log:
        f"{STUDY}/log/complete.log",
    params:
        settings=SESSION.settings(),
    shell:
        'exec "${{PYTHON:-python3}}" -m workflow.collocation.plan.terminal workflow.collocation.plan.show --check --config {params.settings}'
