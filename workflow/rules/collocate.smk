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
    threads: 1
    resources:
        gpu=1,
    params:
        arguments=lambda wildcards: SITTING.arguments(wildcards.job),
    message:
        "{wildcards.job}"
    shell:
        'exec "${{PYTHON:-python3}}" -m workflow.collocation.run {params.arguments}'
        " --data {input.data:q} -- {output.record:q}"
