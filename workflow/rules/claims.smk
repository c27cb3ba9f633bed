CLAIMS = expand("{study}/claims.{ending}", study=STUDY, ending=["md", "csv", "json"])
GUIDELINES = expand("{study}/guidelines.{ending}", study=STUDY, ending=["md", "csv"])


localrules:
    judge,
    advise,


rule judge:
    # Does what the paper claims hold here? The rules were fixed before anything was measured.
    input:
        runs=f"{STUDY}/runs.parquet",
        claims=Path(workflow.basedir, "config", "claims.yaml"),
        reported=REPORTED,
    output:
        CLAIMS,
    log:
        f"{STUDY}/log/judge.log",
    conda:
        "../../envs/environment.yaml"
    params:
        expected=f"{STUDY}/plan.json",
        plan=SITTING.plan_digest,
        stem=subpath(output[0], strip_suffix=".md"),
    message:
        "judging the paper's claims by study {SITTING.name}"
    shell:
        'exec "${{PYTHON:-python3}}" -m analysis.claims --runs {input.runs:q} --expected {params.expected:q}'
        " --claims {input.claims:q} --reported {input.reported:q} --output {params.stem:q} > {log:q}"


rule advise:
    # Which method, and how many at once: every sentence is filled from the table.
    input:
        runs=f"{STUDY}/runs.parquet",
    output:
        GUIDELINES,
    log:
        f"{STUDY}/log/advise.log",
    conda:
        "../../envs/environment.yaml"
    params:
        expected=f"{STUDY}/plan.json",
        plan=SITTING.plan_digest,
        stem=subpath(output[0], strip_suffix=".md"),
    message:
        "guidelines from study {SITTING.name}"
    shell:
        'exec "${{PYTHON:-python3}}" -m analysis.guidelines --runs {input.runs:q} --expected {params.expected:q}'
        " --output {params.stem:q} > {log:q}"
