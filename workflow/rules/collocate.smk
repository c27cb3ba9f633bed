rule dataset:
    # Real data where there are any, generated ones where not; the source found first stays.
    output:
        ready=f"{STUDY}/ready/{{dataset}}.{{request}}.json",
    log:
        f"{STUDY}/log/dataset.{{dataset}}.{{request}}.log",
    resources:
        mem_mb=8192,
        runtime=240,
    params:
        arguments=lambda wildcards: SESSION.datasets.arguments(wildcards.dataset),
    shell:
        'exec "${{PYTHON:-python3}}" -m workflow.collocation.plan.terminal models.data prepare {params.arguments} --ready {output.ready:q}'
        " > {log:q}"


rule collocate:
    # One cell: its members on one GPU, with proof that its method was in force.
    input:
        data=lambda wildcards: SESSION.needed(wildcards.job),
    output:
        record=f"{CELLS}/{{job}}/run.json",
    log:
        f"{CELLS}/{{job}}/log/conductor.log",
    wildcard_constraints:
        job=r".+/r\d+/a\d+",
    # Snakemake runs high priorities first.
    priority: lambda wildcards: len(SESSION.cells) - SESSION.job_at[wildcards.job].rank
    group:
        SESSION.replicate(INVOCATION.names_of_groups())
        if REMOTE and INVOCATION.is_main_process
        else None
    # A core for each share of the machine: the same for all cells, or they could not be compared.
    threads: SESSION.threads
    resources:
        **CARDS,
        gpu=1,
        mem_mb=lambda wildcards: SESSION.job_at[wildcards.job].memory_mb,
        runtime=lambda wildcards: SESSION.runtime_min(wildcards.job),
    params:
        job=f"{STUDY}/jobs/{{job}}.json",
    shell:
        'exec "${{PYTHON:-python3}}" -m workflow.collocation.plan.terminal workflow.collocation.run.cell {params.job:q}'
