FIGURES = expand(
    "{study}/figures/{figure}.{ending}",
    study=STUDY,
    figure=[stem(name, arm) for name, arm in stems(SITTING.arms)],
    ending=["png", "pdf", "svg", "csv"],
)
TABLES = expand(
    "{study}/tables/{table}.{ending}",
    study=STUDY,
    table=["summary", "telemetry"],
    ending=["csv", "md"],
)
EVIDENCE = expand("{study}/tables/evidence.{ending}", study=STUDY, ending=["csv", "md"])
CHECKS = [f"{STUDY}/checks.json", *EVIDENCE]


localrules:
    figures,
    draw,
    tabulate,
    check_work,


rule figures:
    # Figures and tables of what is there: plans no cell with --config measure=false.
    input:
        FIGURES,
        TABLES,
        CHECKS,
        CLAIMS,
        GUIDELINES,
        f"{STUDY}/telemetry.parquet",


rule draw:
    # All figures in one process: loading the libraries takes longer than drawing. What is there is
    # kept: a figure whose content has not changed is not written again.
    input:
        runs=f"{STUDY}/runs.parquet",
        telemetry=f"{STUDY}/telemetry.parquet",
        reported=REPORTED,
    output:
        update(FIGURES),
    log:
        f"{STUDY}/log/draw.log",
    conda:
        "../../envs/environment.yaml"
    params:
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


rule tabulate:
    input:
        runs=f"{STUDY}/runs.parquet",
    output:
        summary=multiext(f"{STUDY}/tables/summary", ".csv", ".md"),
        telemetry=multiext(f"{STUDY}/tables/telemetry", ".csv", ".md"),
    log:
        f"{STUDY}/log/tabulate.log",
    conda:
        "../../envs/environment.yaml"
    params:
        expected=f"{STUDY}/plan.json",
        plan=SITTING.plan_digest,
        summary=subpath(output[0], strip_suffix=".csv"),
        telemetry=subpath(output[2], strip_suffix=".csv"),
    message:
        "tables of study {SITTING.name}"
    shell:
        'exec "${{PYTHON:-python3}}" -m analysis.tables --runs {input.runs:q} --expected {params.expected:q}'
        " --output {params.summary:q} --telemetry {params.telemetry:q} > {log:q}"


rule check_work:
    # Did every member do the same work, was each method in force, what differs within the study?
    input:
        runs=f"{STUDY}/runs.parquet",
    output:
        checks=f"{STUDY}/checks.json",
        evidence=EVIDENCE,
    log:
        f"{STUDY}/log/check_work.log",
    conda:
        "../../envs/environment.yaml"
    params:
        runs=f"{STUDY}/runs.txt",
        study=SITTING.name,
        evidence=subpath(output[1], strip_suffix=".csv"),
    message:
        "comparing the work of the cells of study {SITTING.name}"
    shell:
        'exec "${{PYTHON:-python3}}" -m analysis.checks --study {params.study:q} --list {params.runs:q}'
        " --output {output.checks:q} --evidence {params.evidence:q} > {log:q}"
