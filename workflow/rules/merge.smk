TELEMETRY = f"{STUDY}/telemetry.parquet"


localrules:
    merge,
    merge_telemetry,
    complete,


rule merge:
    # One row per member and cell. The list of records stands in runs.txt: it can be long.
    input:
        records=SITTING.run_files(),
    output:
        runs=f"{STUDY}/runs.parquet",
        csv=f"{STUDY}/runs.csv",
    log:
        f"{STUDY}/log/merge.log",
    conda:
        "../../envs/environment.yaml"
    params:
        analysis=ANALYSIS,
        runs=f"{STUDY}/runs.txt",
        study=SITTING.name,
    message:
        "merging the records of study {SITTING.name}"
    shell:
        'exec "${{PYTHON:-python3}}" -m analysis.merging.merge --study {params.study:q} --list {params.runs:q}'
        " --output {output.runs:q} > {log:q}"


rule merge_telemetry:
    # What the GPU did over time: all cells' readings in one file, an empty one without a GPU. What
    # is there of cells that have not changed is kept.
    input:
        records=SITTING.run_files(),
    output:
        telemetry=update(TELEMETRY),
    log:
        f"{STUDY}/log/merge_telemetry.log",
    conda:
        "../../envs/environment.yaml"
    params:
        analysis=ANALYSIS,
        runs=f"{STUDY}/runs.txt",
        study=SITTING.name,
    message:
        "merging the telemetry of study {SITTING.name}"
    shell:
        'exec "${{PYTHON:-python3}}" -m analysis.merging.telemetry --study {params.study:q} --list {params.runs:q}'
        " --output {output.telemetry:q} > {log:q}"


# Who only draws what is there does not say that it is all.
COMPLETE = [f"{STUDY}/complete"] if SITTING.measuring else []


rule complete:
    # The last job: fails, and lists what failed, if a cell has no result.
    input:
        records=SITTING.run_files(),
        figures=FIGURES,
        pages=TEXTS,
        telemetry=TELEMETRY,
    output:
        touch(f"{STUDY}/complete"),
    log:
        f"{STUDY}/log/complete.log",
    conda:
        "../../envs/environment.yaml"
    params:
        settings=SITTING.settings(),
    message:
        "checking that every cell of study {SITTING.name} has a result"
    shell:
        'exec "${{PYTHON:-python3}}" -m workflow.collocation.show --check --config {params.settings}'
