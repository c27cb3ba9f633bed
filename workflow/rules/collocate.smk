rule collocate:
    # One cell: its members on one GPU, with proof that its method was in force.
    input:
        data=lambda wildcards: SESSION.datasets.ready_files(),
    output:
        record=f"{CELLS}/{{job}}/run.json",
    log:
        f"{CELLS}/{{job}}/log/conductor.log",
    # Only what is pending is produced by a rule; a measured cell is a source file.
    wildcard_constraints:
        job="|".join(re.escape(job.path) for job in SESSION.jobs) or "nothing",
    priority: lambda wildcards: JOBS.priority(wildcards.job)
    # A core for each share of the machine: the same for all cells, or they could not be compared.
    threads: SESSION.study.cores_for
    resources:
        gpu=1,
        mem_mb=lambda wildcards: JOBS.memory_mb(wildcards.job),
        runtime=lambda wildcards: JOBS.runtime_min(wildcards.job),
    params:
        job=lambda wildcards: JOBS.file(wildcards.job),
    shell:
        'exec "${{PYTHON:-python3}}" -m workflow.collocation.cell.run {params.job:q}'
