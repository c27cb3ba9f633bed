FIGURES = expand(
    "{study}/figures/{figure}.{ending}",
    study=STUDY,
    figure=[stem(name, arm) for name, arm in stems(SITTING.arms)],
    ending=["png", "pdf", "svg", "csv"],
)
TEXTS = [f"{STUDY}/{name}" for name in PAGE_FILES]


localrules:
    figures,
    draw,
    write_pages,


rule figures:
    # Figures and tables of what is there: plans no cell with --config measure=false.
    input:
        FIGURES,
        TEXTS,
        CONTENTS,
        f"{STUDY}/telemetry.parquet",


rule draw:
    # All figures in one process: loading the libraries takes longer than drawing. What is there is
    # kept: a figure whose content has not changed is not drawn again.
    input:
        runs=f"{STUDY}/runs.parquet",
        telemetry=f"{STUDY}/telemetry.parquet",
        reported=REPORTED,
    output:
        update(FIGURES),
    log:
        f"{STUDY}/log/draw.log",
    # Takes longest, and both cores: what is shorter goes on beside it.
    priority: 1
    conda:
        "../../envs/environment.yaml"
    params:
        analysis=ANALYSIS,
        expected=f"{STUDY}/plan.json",
        layouts=f"{STUDY}/mig_layouts.json",
        plan=SITTING.plan_digest,
        folder=subpath(output[0], parent=True),
    message:
        "drawing the figures of study {SITTING.name}"
    shell:
        'exec "${{PYTHON:-python3}}" -m analysis.figures all --runs {input.runs:q} --expected {params.expected:q}'
        " --telemetry {input.telemetry:q} --reported {input.reported:q} --mig-layouts {params.layouts:q}"
        " --output {params.folder:q} > {log:q}"


rule write_pages:
    # Tables, checks, claims, guidelines, and the pages that explain them: in one process, as the
    # figures are.
    input:
        runs=f"{STUDY}/runs.parquet",
        claims=CLAIMS,
        reported=REPORTED,
        bench=[path.as_posix() for path in Path(STUDY, "bench").glob("*.json")],
    output:
        TEXTS,
    log:
        f"{STUDY}/log/write_pages.log",
    conda:
        "../../envs/environment.yaml"
    params:
        analysis=ANALYSIS,
        runs=f"{STUDY}/runs.txt",
        plan=SITTING.plan_digest,
        study=SITTING.name,
        folder=subpath(output[0], parent=True),
    message:
        "tables, checks, claims and pages of study {SITTING.name}"
    shell:
        'exec "${{PYTHON:-python3}}" -m analysis.pages --study {params.study:q} --folder {params.folder:q}'
        " --list {params.runs:q} --claims {input.claims:q} --reported {input.reported:q} > {log:q}"
