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
