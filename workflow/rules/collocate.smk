rule collocate:
    # One cell: its members on one GPU, with proof that its method was in force.
    input:
        data=lambda wildcards: SITTING.ready_files(wildcards.job),
    output:
        record=f"{CELLS}/{{job}}/run.json",
    log:
        f"{CELLS}/{{job}}/log/conductor.log",
    # Only what is pending is produced by a rule; a measured cell is a source file.
    wildcard_constraints:
        job="|".join(re.escape(job.path) for job in SITTING.jobs) or "nothing",
    priority: lambda wildcards: SITTING.priority(wildcards.job)
    conda:
        "../../envs/environment.yaml"
    # A core for each share of the machine: the same for all cells, or they could not be compared.
    threads: SITTING.study.cores_for
    resources:
        gpu=1,
        mem_mb=lambda wildcards: SITTING.memory_mb(wildcards.job),
        runtime=lambda wildcards: SITTING.runtime_min(wildcards.job),
    params:
        job=lambda wildcards: SITTING.job_file(wildcards.job),
    message:
        "{wildcards.job}"
    shell:
        'exec "${{PYTHON:-python3}}" -m workflow.collocation.run {params.job:q}'
