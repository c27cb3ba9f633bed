rule dataset:
    # Prepares a dataset: real data if there are any, otherwise generated ones. A study keeps to the
    # source that it found first.
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
    # Measures one cell: its members share one GPU, with proof that the method was in force.
    input:
        data=lambda wildcards: SESSION.data_files(wildcards.job),
    output:
        record=f"{CELLS}/{{job}}/run.json",
    log:
        f"{CELLS}/{{job}}/log/conductor.log",
    wildcard_constraints:
        job=r".+/r\d+/a\d+",
    # Snakemake runs high priorities first.
    priority: lambda wildcards: len(SESSION.cells) - SESSION.jobs_by_path[wildcards.job].rank
    group:
        SESSION.replicate_groups(INVOCATION.names_of_groups())
        if REMOTE and INVOCATION.is_main_process
        else None
    # All cells count the same number of cores, or they could not be compared.
    threads: SESSION.threads
    resources:
        **CARDS,
        gpu=1,
        mem_mb=lambda wildcards: SESSION.jobs_by_path[wildcards.job].memory_mb,
        runtime=lambda wildcards: SESSION.runtime_min(wildcards.job),
    params:
        job=f"{STUDY}/jobs/{{job}}.json",
    shell:
        'exec "${{PYTHON:-python3}}" -m workflow.collocation.plan.terminal workflow.collocation.run.cell {params.job:q}'
