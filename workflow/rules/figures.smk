rule figures:
    # Figures and pages of what is there: plans no cell with --config measure=false.
    input:
        FIGURES,
        PAGES,
        CONTENTS,
        f"{STUDY}/telemetry.parquet",


rule draw:
    # One process for all.
    input:
        estimates=ESTIMATES,
    output:
        FIGURES,
    log:
        f"{STUDY}/log/draw.log",
    priority: 1
    threads: 2
    params:
        analysis=ANALYSIS,
        folder=subpath(input.estimates, parent=True),
    shell:
        'exec "${{PYTHON:-python3}}" -m analysis --code {params.analysis} figures --folder {params.folder:q} > {log:q}'


rule write_pages:
    # Findings, claims, advice, tables, and why to believe them.
    input:
        estimates=ESTIMATES,
        claims=CLAIMS,
    output:
        PAGES,
    log:
        f"{STUDY}/log/write_pages.log",
    params:
        analysis=ANALYSIS,
        folder=subpath(input.estimates, parent=True),
    shell:
        'exec "${{PYTHON:-python3}}" -m analysis --code {params.analysis} pages --folder {params.folder:q} --claims {input.claims:q} > {log:q}'
