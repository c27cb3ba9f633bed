rule figures:
    # Figures and pages of what is there: plans no cell with --config measure=false.
    input:
        FIGURES,
        PAGES,
        CONTENTS,
        f"{STUDY}/telemetry.parquet",


rule draw:
    # All figures that the study has data for. Which those are, the file says that is named here.
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
    # Results, claims, advice, and why to believe them; their tables.
    input:
        estimates=ESTIMATES,
        figures=FIGURES,
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
