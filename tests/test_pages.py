"""Pages: every number on them is published; they are made of any study; README is what ships."""

import csv
import re
from dataclasses import replace
from pathlib import Path

import pytest
from jinja2 import Environment, StrictUndefined, UndefinedError, nodes

from analysis import claims, labels, pages
from analysis.__main__ import main as analysis
from analysis.estimates import schema
from analysis.estimates.schema import INTERVAL, RANGE, Estimate, described
from analysis.estimates.table import Estimates
from analysis.pages import choose, render, tables
from analysis.pages.book import Book, PageError, only_published, plain
from analysis.quantities import QUANTITIES
from tests.old_estimates import build
from tests.simulator import BUSY_GAINS, Design, Job, Noise, simulate
from tests.studio import REPOSITORY

RULES = REPOSITORY / "config/claims.yaml"
MIX = "1x_thin_b32+1x_thick_b8"
SHIPPED = REPOSITORY / "results/h200"
NUMBER = re.compile(r"\d+(?:,\d{3})*(?:\.\d+)?")
DESIGN = Design(
    [
        Job("thin_b32", arms={"paper_step": 1.0, "graph": 3.0}),
        Job("thick_b8", 500, 0.97, BUSY_GAINS),
    ],
    methods=("naive", "naive_again", "mps", "mig"),
    mixes=(MIX, f"{MIX}--completion", f"{MIX}--departure"),
    hosts=2,
    blocks=3,
    ends={("7x_thick_b8", "mps"): "out_of_memory", ("7x_thin_b32", "mig"): "unsupported"},
)  # fmt: skip

TURNS = (("7x_thin_b32", "alone-naive-mps-naive"), ("1x_thin_b32", "naive-mps-naive"))


def written(folder: Path, found: list[Estimate]) -> Path:
    """A study's folder with these numbers, and the verdicts on them."""
    found = [described(e) for e in found]
    found += (Estimate(**row) for row in claims.verdicts(claims.read(RULES), Estimates(found)))
    folder.mkdir(parents=True)
    schema.write(found, folder / "estimates.parquet")
    return folder


def simulated(design: Design) -> list[Estimate]:
    study = simulate(design, 1)
    return build(study.rows, study.plan, {})


def cpu(found: list[Estimate]) -> list[Estimate]:
    """Without what only a GPU tells."""
    unread = {"gract", "smact", "smocc", "tenso", "drama", "power", "s", "gaps", "memory"}
    unread |= {n for n in QUANTITIES if n.startswith(("energy", "gract", "capacity", "parts"))}
    gpu = ("software_gpu_simulated_gpu", "software_gpu_none")
    return [replace(e, name=gpu[1]) if e.name == gpu[0] else e for e in found
            if e.quantity not in unread]  # fmt: skip


NOTHING = [
    Estimate("count", name="cells", value=2.0),
    Estimate("count", name="cells_completed", value=0.0),
    Estimate("outcome", scenario="1x_thin_b32", arm="paper_step", method="naive", value=0.0, n=2,
             status="not_run"),
]  # fmt: skip


@pytest.fixture(scope="module", params=["gpu", "cpu", "nothing"])
def study(request, tmp_path_factory) -> Path:
    """The folder of a study, with its pages."""
    turns = TURNS if request.param == "gpu" else ()
    found = NOTHING if request.param == "nothing" else simulated(replace(DESIGN, turns=turns))
    found = cpu(found) if request.param == "cpu" else found
    folder = written(tmp_path_factory.mktemp("pages") / request.param, found)
    assert analysis(["pages", "--folder", str(folder), "--claims", str(RULES)]) == 0
    return folder


def literal(text: str) -> set[str]:
    return set(NUMBER.findall(text))


def literals(template: str) -> set[str]:
    """Numbers that a template itself says, those of what it includes too."""
    environment = Environment()
    source = (render.TEMPLATES / template).read_text()
    tree = environment.parse(source)
    found = {n for data in tree.find_all(nodes.TemplateData) for n in literal(data.data)}
    for included in tree.find_all(nodes.Include):
        found |= literals(included.template.value)
    return found


def spellings(e: Estimate) -> set[str]:
    """Every way in which a page may write a number."""
    found = labels.span(e) + " " + labels.span(replace(e, unit="")) + f" {e.n} {e.hosts}"
    for value in (e.value, e.low, e.high):
        if value is not None:
            found += "".join(f" {value:,.{d}f} {100 * value:.{d}f}" for d in (0, 1, 2, 3))
            found += f" {labels.number(1000 * value)}"
    return literal(found)


def names(estimates: Estimates) -> set[str]:
    """Numbers in what jobs, methods and hosts are called, in notes and rules: words, no results."""
    words = [e.note for e in estimates] + estimates.hosts()
    words += [labels.scenario(e.scenario) for e in estimates.of("outcome", source="*")]
    words += [str(e.jobs) for e in estimates.of("outcome")]
    words += [RULES.read_text(), tables.ISOLATION.read_text()]
    return literal(" ".join(words))


def listed(text: str) -> tuple[str, list[str]]:
    """A page without its list of ids, and the ids."""
    body, _, rest = text.partition("<details><summary>Where each number comes from")
    block = rest.partition("```\n")[2].partition("\n```")[0]
    return body, [identity for line in block.splitlines() for identity in unbraced(line)]


def unbraced(line: str) -> list[str]:
    """`{a,b}:{c,d}/e` as the shell writes it out."""
    match = re.search(r"\{([^{}]*)\}", line)
    if match is None:
        return [line]
    parts = (line[: match.start()] + each + line[match.end() :] for each in match[1].split(","))
    return [one for part in parts for one in unbraced(part)]


def unfounded(text: str, template: str, estimates: Estimates) -> set[str]:
    """Numbers on a page that neither its template, nor a name, nor a listed estimate says."""
    body, ids = listed(text)
    allowed = literals(template) | names(estimates)
    for identity in ids:
        allowed |= spellings(estimates[identity])
    return literal(body) - allowed


def test_all_files_are_written(study):
    assert {name for name in pages.FILES if not (study / name).is_file()} == set()
    assert set(pages.FILES) == {name for name, _ in render.Study(study, RULES).outputs()}


@pytest.mark.parametrize("page", [*pages.PAGES, *pages.TABLES])
def test_every_number_on_a_page_is_an_estimate_that_the_page_names(study, page):
    estimates = Estimates.read(study / "estimates.parquet")
    folder = study / "tables" if page in pages.TABLES else study
    text = (folder / f"{page}.md").read_text()
    assert unfounded(text, f"{page}.md.j2", estimates) == set()


def test_that_check_finds_a_number_of_another_origin(study):
    estimates = Estimates.read(study / "estimates.parquet")
    text = (study / "findings.md").read_text().replace("## ", "It gains 98.76 %.\n\n## ", 1)
    assert unfounded(text, "findings.md.j2", estimates) == {"98.76"}


@pytest.mark.parametrize("table", pages.TABLES)
def test_values_of_a_table_are_those_of_the_ids_beside_them(study, table):
    estimates = Estimates.read(study / "estimates.parquet")
    with (study / f"tables/{table}.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            ids = row.pop("id").split()
            known = {f"{f * v:.9g}" for i in ids for e in [estimates[i]] for f in (1, 1000)
                     for v in (e.value, e.low, e.high, e.n) if v is not None}  # fmt: skip
            values = {v for k, v in row.items() if v and f"{k} low" in row} - {""}
            assert {v for v in values if re.fullmatch(r"[\d.e+-]+", v)} <= known


@pytest.mark.parametrize("page", [*pages.PAGES, *pages.TABLES])
def test_a_page_begins_with_what_the_study_can_answer(study, page):
    folder = study / "tables" if page in pages.TABLES else study
    line = (folder / f"{page}.md").read_text().splitlines()[2]
    said = {"nothing": "answers nothing", "cpu": "nothing about sharing a GPU",
            "gpu": "how fast these jobs train"}  # fmt: skip
    assert said[study.name] in line
    if study.name != "nothing":
        turns = ", and each cell of sets that take turns 2 times" if study.name == "gpu" else ""
        assert f"2 hosts), in windows of 6.00 s: each set 6 times{turns}. " in line


def test_gains_of_alternating_cells_are_marked_where_others_stand_beside_them(study):
    """In each table that has both; STP over plain processes is not of the other sets' design."""
    marked = {name: re.findall(r"^\|.*†.*", (study / f"{name}.md").read_text(), re.M)
              for name in ("findings", "advice", "tables/sets", "tables/hosts")}  # fmt: skip
    assert all(bool(rows) == (study.name == "gpu") for rows in marked.values()), marked
    turned = r"thin b32|^\| 7 |7 under MPS|7 as plain"
    assert all(re.search(turned, row) for rows in marked.values() for row in rows), marked
    text = (study / "advice.md").read_text()
    assert text.count("† the sets compared took turns in one cell") == 2 * bool(marked["advice"])


def test_few_replicates_are_said_to_be_few(tmp_path):
    once = replace(DESIGN, hosts=1, blocks=1, methods=("naive", "mps"), ends={})
    study = render.Study(written(tmp_path / "once", simulated(once)), RULES)
    line = study.page("advice").splitlines()[2]
    assert "1 host), " in line and "each set once. With so few" in line
    assert "Measured once, so part of it may be chance." in study.page("advice")


@pytest.mark.parametrize("lacks", [(), ("eager", "compile")])
def test_the_fastest_way_alone_is_told_with_the_best_set_and_what_was_not_measured(tmp_path, lacks):
    arms = {"paper_step": 1.0, "eager": 1.2, "bf16": 0.9, "graph": 3.0, "compile": 4.0}
    arms = {arm: speed for arm, speed in arms.items() if arm not in lacks}
    design = Design([Job("thin_b32", arms=arms), Job("thick_b8", 500, 0.97, BUSY_GAINS)],
                    noise=Noise(host=0, alone=0.001, block=0))  # fmt: skip
    study = render.Study(written(tmp_path / "arms", simulated(design)), RULES)
    (row,) = choose.fastest(study.estimates).rows
    best = max(arms, key=arms.get)
    assert row[:2] == ("thin b32", labels.arm(best))
    assert row[2].of.value == pytest.approx(3000 * arms[best], rel=0.01) and row[3].of.n == 5
    assert row[4].startswith("7 under MPS") or row[4].startswith("2 under MPS")
    assert row[6].of.id.startswith("over_fastest:") and 1 < row[6].of.value < 7
    assert row[-1] == "; ".join(map(labels.arm, lacks))
    alone = [row[:2] for row in study.tables["alone"].rows]
    assert alone == [("thick b8", "paper style"), *(("thin b32", labels.arm(arm)) for arm in arms)]


def test_the_best_set_does_most_samples_and_not_most_over_a_slow_job_alone():
    of = {"quantity": "stp", "scenario": "2x_thin_b32", "arm": "paper_step", "method": "mps"}
    found = simulated(replace(DESIGN, hosts=1))
    high = [replace(e, value=50.0) if of.items() <= vars(e).items() else e for e in found]
    for each in (found, high):
        rows = choose.gains(Estimates(each)).rows
        best = {row[:2]: row[4] for row in rows}
        assert best["thin b32", "paper style"] == "7 under MPS"


@pytest.mark.parametrize("gract, said", [(0.97, "7 × thin b32"), (0.99, "")])
def test_sets_whose_gain_from_mps_is_their_hosts_are_named(tmp_path, gract, said):
    found = [
        replace(e, value=gract if e.scenario == "7x_thin_b32" and e.arm == "paper_step" else 1.0)
        if e.quantity == "gract" and e.method == "mps" and not e.host else e
        for e in simulated(DESIGN)
    ]  # fmt: skip
    study = render.Study(written(tmp_path / "waits", found), RULES)
    assert choose.waiting(study.estimates) == said
    assert ("from minute to minute" in study.page("findings")) is bool(said)


@pytest.mark.parametrize(("busy", "waits"), [(0.04, True), (0.06, False), (0.1, False)])
def test_the_hosts_waiting_is_blamed_only_where_busy_gpus_differ_by_less(tmp_path, busy, waits):
    """Hosts differ by 10 % in samples/s; by so much in those of a second of busy GPU."""
    apart = {"rate_apart": 0.1, "device_rate_apart": busy}
    found = [replace(e, value=apart.get(e.name, e.value)) if e.quantity == "count" else e
             for e in simulated(DESIGN)]  # fmt: skip
    study = render.Study(written(tmp_path / "apart", found), RULES)
    assert choose.hosts_wait(study.estimates) is waits
    for page in ("findings", "alone"):
        text = " ".join(study.page(page).split())
        assert "10.0 %" in text and f"{100 * busy:.1f} %" in text
        assert ("So hosts differ in how long they let the GPU wait" in text) is waits, page


def test_html_holds_the_page_and_asks_for_nothing(study):
    text = (study / "report/findings.html").read_text()
    assert "<h1>Findings of study" in text and 'name="viewport"' in text
    assert not re.search(r"""(src|href)=["']?(https?:)?//""", text)
    assert 'href="sets.html"' in text or "nothing to report" in text


def test_the_last_lines_begin_with_advice_and_are_few(study):
    lines = pages.closing(study).splitlines()
    assert 3 <= len(lines) <= 15
    if study.name != "nothing":
        assert lines[0].startswith("Measured on a ")
    if study.name == "gpu":
        assert "How many" in lines[1] and "Run " in lines[2]
    if study.name == "cpu":
        assert "says nothing about sharing a GPU" in lines[0] and "Run " not in "".join(lines)
    assert "advice.md" in lines[-2]
    asked = f"STUDY={study.name} CONFIG=results={study.parent} ID=..."
    assert lines[-1].endswith(f"make explain {asked}")
    assert pages.closing(study / "tables") == "", "none without estimates"


def test_the_last_lines_advise_in_the_way_that_does_most_and_name_jobs_without_sets(tmp_path):
    """thin: sets as graphs only; thick: none of its copies; two ways of writing in the study."""
    found = [e for e in simulated(DESIGN) if e.jobs < 2 or (e.arm == "graph" and "thin" in e.id)]
    lines = pages.closing(written(tmp_path / "few", found)).splitlines()
    asked = next(at for at, line in enumerate(lines) if line.startswith("How many"))
    assert re.match(r"thin b32, bf16 \+ CUDA graph: Run \d under M", lines[asked + 1])
    assert [line for line in lines if "thick" in line] == [lines[asked + 2]]
    assert "not measured together" in lines[asked + 2] and "Sharing was" not in "".join(lines)


@pytest.mark.parametrize(
    ("quantity", "method", "jobs", "low", "high", "tick"),
    [
        ("rate_over_naive", "naive_again", 2, 0.96, 1.04, "yes"),
        ("rate_over_naive", "naive_again", 2, 0.8, 1.25, "not shown"),
        ("rate_over_naive", "naive_again", 2, None, None, "not shown"),  # one replicate
        # Within one alternating cell: 0.3 % of sets, 3 % of jobs alone.
        ("aa", "naive", 7, 0.998, 1.002, "yes"),
        ("aa", "naive", 7, 0.998, 1.004, "not shown"),
        ("aa", "naive", 7, 1.005, 1.007, "no"),
        ("aa", "naive", 1, 0.98, 1.02, "yes"),
        ("aa", "naive", 1, 0.96, 1.02, "not shown"),
    ],
)
def test_belief_gives_a_tick_to_an_aa_that_excludes_a_difference(
    tmp_path, quantity, method, jobs, low, high, tick
):
    of = {"arm": "paper_step", "method": method, "hosts": 1, "value": 1.0, "low": low, "high": high}
    of |= {"spread": "none" if low is None else INTERVAL, "n": 3 if quantity != "aa" else 1}
    aa = Estimate(quantity, scenario=f"{jobs}x_thin_b32", **of)
    found = [*NOTHING, aa, replace(aa, host="h1")]
    text = render.Study(written(tmp_path / "aa", found), RULES).page("belief")
    rows = [row.split("|") for row in text.splitlines() if "| h1 |" in row]
    assert [row[-2].strip() for row in rows] == [tick], rows


@pytest.mark.parametrize("checked", [True, False])
def test_belief_says_yes_to_equal_work_only_where_losses_were_compared(tmp_path, checked):
    found = [e for e in simulated(DESIGN) if checked or not e.name.startswith("losses_")]
    text = render.Study(written(tmp_path / "work", found), RULES).page("belief")
    (row,) = re.findall(r"^\| Each job did the same work.* \| (.*) \|$", text, re.M)
    assert row == ("yes" if checked else "not shown")


@pytest.mark.parametrize(
    ("design", "n", "said"),
    [("alternate", 1, ", one cell"), ("alternate", 2, ", two cells"), ("alternate", 3, ""),
     ("blocks", 2, "")],
)  # fmt: skip
def test_an_interval_of_few_alternating_cells_says_so(design, n, said):
    e = Estimate("stp", "2x_thin_b32", value=1.5, low=1.4, high=1.6, spread=INTERVAL, n=n)
    assert labels.span(replace(e, design=design)) == f"1.50 [1.40, 1.60]{said}"


def test_claims_of_which_a_study_planned_a_set_are_shown_and_the_others_named(tmp_path):
    """A rule that was changed shows both verdicts and why."""
    sets = [Estimate("outcome", f"{n}x_resnet152_imagenet_b32", "paper_step", "mps", value=0.0,
                     n=1, status="not_run") for n in (1, 2)]  # fmt: skip
    text = render.Study(written(tmp_path / "few", [*NOTHING, *sets]), RULES).page("claims")
    (others,) = re.findall(r"planned no set that would test them: (.*)\.", text)
    shown = {"C1a", "C6b", "C6c", "C16a", "C16b"}
    for claim in claims.read(RULES).claims:
        assert (claim.id in shown) != (claim.id in others.split(", ")), claim.id
        rows = re.findall(rf"^\| (?:C\w+, )*{claim.id}\b.*", text, re.M)
        assert bool(rows) == (claim.id in shown), claim.id
        if rows and claim.changed:
            assert ", post hoc |" in rows[0] and "are not post hoc" not in text
            assert re.search(rf"\b{claim.id}\b[C0-9a-z, ]*: {claim.changed.before} → ", text)
            assert str(plain(claim.changed.why)) in text


def test_a_template_prints_no_number_but_a_published_one():
    environment = Environment(undefined=StrictUndefined, finalize=only_published)
    for shown in (0.5, "1.5 times", 3):
        with pytest.raises(PageError, match="no published number"):
            environment.from_string("{{ shown }}").render(shown=shown)
    with pytest.raises(PageError, match="stp:7x_a"):
        Book(Estimates([])).num("stp:7x_a/paper_step/mps")
    with pytest.raises(UndefinedError):
        environment.from_string("{{ nothing }}").render()


def test_ids_are_listed_as_the_shell_writes_them():
    found = [Estimate(q, scenario=f"{n}x_a", arm="paper_step", method=m, value=1.0)
             for q in ("rate", "stp") for n in (2, 7) for m in ("naive", "mps")]  # fmt: skip
    book = Book(Estimates(found))
    for e in found:
        book.num(e)
    assert sorted(i for line in book.sources().splitlines() for i in unbraced(line)) == sorted(
        e.id for e in found
    )
    assert book.sources().splitlines()[0] == "{rate,stp}:{2x_a,7x_a}/paper_step/{mps,naive}"


def test_words_from_records_stay_words():
    nasty = "<script>|![x](http://a)`b`\n*c*"
    assert not re.search(r"(?<!\\)[<>|\[\]`*]", plain(nasty)) and "\n" not in plain(nasty)
    table = tables.Table(("a", "b"), [("=1+1", "plain")])
    assert table.csv().splitlines()[1].startswith("'=1+1")


def test_a_share_keeps_its_spread():
    e = Estimate("saving", value=0.065, low=0.0286, high=0.083, spread=RANGE, n=3, hosts=2)
    assert Book(Estimates([e])).pct(e) == "6.5 % (2.9 to 8.3 %)"


def test_what_drills_found_is_what_their_tests_demand():
    """Rows of isolation.csv against the fates in tests/test_faults.py."""
    text = (REPOSITORY / "tests/test_faults.py").read_text()
    rows = {row[0]: row for row in tables.isolation(Estimates([])).rows}
    for scenario, what, column, fate in (
        ("illegal_mps", "neighbour of an illegal memory access", 2, "failed"),
        ("server_dies", "jobs whose MPS server is killed", 2, "failed"),
        ("starves", "jobs beyond their memory limit", 2, "out_of_memory"),
    ):
        entry = text.partition(f'"{scenario}": Scenario(')[2].partition("\n    ),")[0]
        assert f'fates=("{fate}",)' in entry
        assert fate.replace("_", " ") in rows[what][column]
    for scenario in ("killed_mps", "asserts", "hangs", "illegal_naive", "killed_naive"):
        entry = text.partition(f'"{scenario}": Scenario(')[2].partition('": Scenario(')[0]
        assert "fates" not in entry  # by default the neighbour completes


@pytest.mark.parametrize(
    ("workload", "name"),
    [
        ("efficientnetv2_s_imagenet64_b128", "EfficientNetV2-S b128"),
        ("resnet26_cifar10_b128_roomy", "ResNet26 b128, roomy"),
        ("my_convnext_cifar10_b64", "my convnext b64"),
    ],
)
def test_what_a_job_is_called(workload, name):
    assert labels.job(workload) == name


def test_every_page_of_the_report_has_a_caption():
    captions = {path.stem for path in (REPOSITORY / "workflow/report").glob("*.rst")}
    assert captions >= {*pages.PAGES, *pages.TABLES, "explorer", "estimates", "runs", "workflow"}
