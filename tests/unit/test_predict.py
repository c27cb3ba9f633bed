"""A set's STP from its jobs alone: laws of the form, its fit, and the file that ships."""

from itertools import product

import pytest
import yaml
from hypothesis import assume, given
from hypothesis import strategies as st

from analysis.advice import fit, predict
from analysis.advice.predict import (
    NO_GAPS_FROM,
    AloneActivity,
    MeasuredSet,
    measured_sets,
    set_stp,
)
from analysis.estimates.quantities import DEMAND
from collocate.app import main as collocate
from tests.handmade import frame, number, written
from tests.studio import REPOSITORY

SHARES = st.floats(0, 1)
JOBS = st.builds(AloneActivity, SHARES, SHARES)
NO_GAPS_JOBS = st.builds(AloneActivity, st.floats(NO_GAPS_FROM, 1), SHARES)
COUNTS = st.integers(2, 24)
METHODS = st.sampled_from(sorted(DEMAND))


@given(METHODS, st.lists(JOBS, min_size=2, max_size=24), st.randoms())
def test_a_set_does_at_most_the_work_of_its_jobs_in_whatever_order(method, alone, random):
    found = predict.predict_stp(method, alone)
    assert 0 < found.stp <= len(alone)
    assert found.low <= found.stp <= found.high
    random.shuffle(alone)
    assert predict.predict_stp(method, alone)[:3] == pytest.approx(found[:3])


@given(METHODS, st.builds(AloneActivity, st.floats(0, 0.25), st.floats(0, 0.25)))
def test_two_small_jobs_run_as_if_alone(method, job):
    assert 1.96 <= predict.predict_stp(method, [job] * 2).stp <= 2


@given(METHODS, JOBS, COUNTS)
def test_more_of_a_job_never_do_less(method, job, n):
    fewer, more = (predict.predict_stp(method, [job] * count).stp for count in (n, n + 1))
    assert fewer <= more * (1 + 1e-9)


@given(METHODS, JOBS, JOBS, COUNTS)
def test_jobs_that_fill_more_of_the_gpu_gain_less(method, a, b, n):
    """If one has gaps and the other has none, roughly: their forms are not the same."""
    alone = [[AloneActivity(*map(of, a, b))] * n for of in (min, max)]
    small, large = (predict.predict_stp(method, jobs).stp for jobs in alone)
    alike = predict.gap_kind(alone[0]) == predict.gap_kind(alone[1])
    assert small >= large * (1 - 1e-9 if alike else 0.88)


@given(st.lists(NO_GAPS_JOBS, min_size=2, max_size=24))
def test_jobs_without_gaps_lose_nothing_under_mps_and_the_switches_as_separate_processes(alone):
    assert predict.predict_stp("mps", alone).stp >= 1
    assert predict.predict_stp("naive", alone).stp == pytest.approx(0.9, rel=0.06)


@given(METHODS, JOBS, COUNTS, COUNTS)
def test_a_set_measured_as_predicted_changes_no_other_prediction(method, job, n, measured_n):
    stp, as_measured = (predict.predict_stp(method, [job] * of).stp for of in (n, measured_n))
    rescaled = predict.predict_rescaled(method, job, n, measured_n, as_measured)
    assert rescaled.stp == pytest.approx(stp)
    assert rescaled.error <= predict.predict_stp(method, [job] * n).error


@given(METHODS, JOBS, COUNTS, COUNTS, st.lists(st.floats(0.1, 30), min_size=2, max_size=2))
def test_a_larger_gain_measured_means_larger_gains_in_bounds(method, job, n, measured_n, gains):
    least = 1 if method == "mps" and job.gract >= NO_GAPS_FROM else 0
    low, high = (
        predict.predict_rescaled(method, job, n, measured_n, gain).stp for gain in sorted(gains)
    )
    assert least <= low <= high <= n and low > 0


@given(METHODS, JOBS, COUNTS, st.floats(0.1, 30))
def test_a_set_is_rescaled_to_what_it_measured(method, job, n, gain):
    assume(gain <= n and (method == "naive" or gain >= 1))
    assert predict.predict_rescaled(method, job, n, n, gain).stp == pytest.approx(gain)


def test_a_set_without_gaps_is_one_none_of_whose_jobs_has_any():
    busy, idle = AloneActivity(NO_GAPS_FROM, 0.4), AloneActivity(NO_GAPS_FROM - 0.01, 0.4)
    kinds = [predict.gap_kind(alone) for alone in ([busy] * 2, [busy, idle], [idle])]
    assert kinds == ["no_gaps", "gaps", "gaps"]


# -- the fit --------------------------------------------------------------------------------------


def known(p=4.0, tau=3.0):
    """Constants of each group. Slices of 2.05 ms and switches of 0.22 ms are not fitted."""
    return {
        ("naive", "gaps"): {"k": 1.05, "p": p},
        ("naive", "no_gaps"): {"k": 2.27 / 2.05},
        ("mps", "gaps"): {"k": 0.95, "p": p},
        ("mps", "no_gaps"): {"k": 1.1, "tau": tau},
    }


STUDIES = [REPOSITORY / "results" / "ladder"]


def sets(**shapes):
    """Of six jobs, three with gaps, as the forms would have them."""
    jobs = {
        "a": AloneActivity(0.2, 0.1),
        "b": AloneActivity(0.5, 0.35),
        "c": AloneActivity(0.8, 0.6),
    }
    jobs |= {
        "d": AloneActivity(0.99, 0.3),
        "e": AloneActivity(1.0, 0.5),
        "f": AloneActivity(0.98, 0.8),
    }
    alike = [(name,) * n for name in jobs for n in (2, 3, 4, 7)]
    for method, names in product(DEMAND, [*alike, ("a", "c"), ("b", "b", "e")]):
        alone = tuple(jobs[name] for name in names)
        constants = known(**shapes)[method, predict.gap_kind(alone)]
        stp = float(set_stp(len(names), predict.gpu_demand(method, alone), constants))
        yield MeasuredSet("+".join(names), frozenset(names), method, alone, stp)


@pytest.mark.parametrize(("p", "tau"), [(2.0, 1.5), (4.0, 3.0), (8.0, 6.0)])
def test_the_fit_finds_the_constants_that_studies_were_made_with(p, tau):
    made = [*sets(p=p, tau=tau)]
    found = fit.fit_constants(made)
    for group, constants in known(p, tau).items():
        assert found.pop(group) == pytest.approx(constants, rel=1e-3), group
    assert not found and max(abs(fit.left_out_errors(made))) < 1e-3


def test_the_error_of_a_set_is_that_of_a_fit_that_has_seen_none_of_its_jobs():
    """A job that gains half of what others do is off by about a half, its mixes too."""
    odd = [e._replace(stp=e.stp / (2 if "c" in e.workloads else 1)) for e in sets()]
    for each, error in zip(odd, fit.left_out_errors(odd), strict=True):
        if "c" in each.workloads:
            assert error == pytest.approx(-0.5, abs=0.01), each.id


@pytest.mark.parametrize("jobs", [("x",), ("x", "y")])
def test_each_set_is_rescaled_by_each_other_of_its_job_if_that_tells_of_other_jobs(jobs):
    def measured(job, n):
        """Off by a tenth for each job: four tell all about two, two not all about four."""
        stp = 0.9**n * set_stp(n, 0.9 * n, known()["naive", "gaps"])
        alone = (AloneActivity(0.9, 0.6),) * n
        return MeasuredSet(f"{n}x {job}", frozenset([job]), "naive", alone, stp, copies_of=job)

    new = [measured(job, n) for job in jobs for n in (2, 4)]
    content = fit.predictor_content({"s": [*sets()]}, new)
    errors = content["constants"]["naive"]["gaps"]["unseen"]
    assert errors["error_90"] == pytest.approx(1 - 0.9**4, abs=0.05)
    assert ("rescaled" in errors) is (len(jobs) == 2)
    if len(jobs) == 2:
        assert errors["rescaled"]["sets"] == 4
        assert errors["rescaled"]["worst"] == {"4x x": pytest.approx(0.9**2 - 1, abs=1e-3)}
        assert errors["rescaled"]["error_mean"] == pytest.approx((1 - 0.9**2) / 2, abs=1e-3)


def test_a_set_counts_if_its_gain_and_both_numbers_of_each_job_alone_are_known():
    def alone(scenario, *quantities, **more):
        return [number(q, scenario, "naive", value=v, **more) for q, v in quantities]

    both = ("gract", 0.5), ("smact", 0.25)
    rows = [*alone("1x_a", *both, ("stp", 1.0)), *alone("1x_b", ("gract", 0.9), ("smact", 0.8))]
    rows += alone("1x_c", ("gract", 0.9))
    rows += alone("1x_a--files", ("gract", 0.1), ("smact", 0.05))
    rows += [number("stp", "2x_a", method, value=1.5) for method in ("naive", "mps", "mps_equal")]
    rows += [number("stp", scenario, value=1.2) for scenario in ("2x_b+1x_a", "2x_c", "1x_b+1x_c")]
    rows += [number("stp", "3x_a--files", value=2.9), number("stp", "2x_a--departure", value=1.0)]
    rows += [number("stp", "2x_a", implementation="graph"), number("stp", "2x_a", host="h1")]
    found = {(each.id, each.method): each for each in measured_sets(frame(rows), "s")}
    assert sorted(found) == [
        *(("s 2x_a/paper_step", method) for method in ("mps", "naive")),
        ("s 2x_b+1x_a/paper_step", "mps"),
        ("s 3x_a--files/paper_step", "mps"),
    ]
    mix = found["s 2x_b+1x_a/paper_step", "mps"]
    assert (mix.workloads, mix.stp, mix.copies_of) == ({"a", "b"}, 1.2, "")
    assert found["s 2x_a/paper_step", "mps"].copies_of == "s 1x_a/paper_step"
    assert predict.gpu_demand("naive", mix.alone) == pytest.approx(2.3)
    assert predict.gpu_demand("mps", mix.alone) == pytest.approx(1.85)
    assert found["s 3x_a--files/paper_step", "mps"].alone == (AloneActivity(0.1, 0.05),) * 3


def test_a_set_is_held_against_its_jobs_alone_on_the_hosts_that_measured_it():
    hosts = {"h1": 0.2, "h2": 0.4, "h3": 0.9}
    rows = [number(q, "1x_a", "naive", value=0.5) for q in ("gract", "smact")]
    for host, share in hosts.items():
        rows += [number(q, "1x_a", "naive", value=share, host=host) for q in ("gract", "smact")]
    rows += [number("stp", "2x_a", value=1.9)]
    rows += [number("stp", "2x_a", value=1.9, host=host) for host in ("h1", "h2")]
    (found,) = measured_sets(frame(rows))
    assert found.alone == (pytest.approx((0.3, 0.3)),) * 2


def test_each_measured_set_has_its_prediction_beside_it_and_the_study_its_errors():
    def alone(share):
        return [number(q, "1x_a", "naive", value=share) for q in ("gract", "smact")]

    told = {n: predict.predict_stp("mps", [AloneActivity(0.5, 0.5)] * n).stp for n in range(2, 13)}
    off = {n: 0.01 * (n - 2) for n in told}  # 0 to 10 %, so 5 % in the median
    rows = [number("stp", f"{n}x_a", value=(1 + off[n]) * told[n]) for n in told]
    found = list(predict.predicted_estimates(frame([*alone(0.5), *rows])))
    sets = {row["scenario"]: row for row in found if row["quantity"] == "stp_predicted"}
    assert {f"{n}x_a": stp for n, stp in told.items()} == {s: e["value"] for s, e in sets.items()}
    assert "+0.070" in sets["9x_a"]["note"] and sets["9x_a"]["method"] == "mps"
    counts = {row["name"]: row["value"] for row in found if row["quantity"] == "count"}
    assert counts == pytest.approx({"predicted_off": 0.05, "predicted_off_90": 0.09})
    assert list(predict.predicted_estimates(frame(rows))) == []


def flat(content, at=""):
    """Path → value, of nested mappings."""
    if not isinstance(content, dict):
        return {at: content}
    return {k: v for key, each in content.items() for k, v in flat(each, f"{at}/{key}").items()}


def test_the_file_that_ships_is_what_its_command_writes(tmp_path, monkeypatch, capsys):
    ships = predict.PREDICTOR_FILE.read_text("utf-8")
    monkeypatch.setattr(predict, "PREDICTOR_FILE", tmp_path / "predictor.yaml")
    monkeypatch.chdir(REPOSITORY)
    command = ships.splitlines()[0].partition("collocate ")[2].split()
    assert [REPOSITORY / study for study in command[2:]] == STUDIES
    assert collocate(command) == 0 and "error_90" in capsys.readouterr().out
    made = predict.PREDICTOR_FILE.read_text("utf-8")
    assert made.splitlines()[0] == ships.splitlines()[0]
    told, made = flat(yaml.safe_load(ships)), flat(yaml.safe_load(made))
    texts = {key: value for key, value in told.items() if isinstance(value, str)}
    assert {key: made.pop(key) for key in texts} == texts
    assert made == pytest.approx({k: told[k] for k in told.keys() - texts.keys()}, abs=2e-6)


def test_methods_tell_the_errors_of_the_file():
    told = (REPOSITORY / "docs" / "methods.md").read_text("utf-8")
    found = yaml.safe_load(predict.PREDICTOR_FILE.read_text("utf-8"))
    for method, by_kind in found["constants"].items():
        for kind, of in by_kind.items():
            for jobs, errors in ((kind.replace("_", " "), of), ("new", of.get("unseen"))):
                if errors:
                    sizes = [errors[f"error_{size}"] for size in ("50", "mean", "90")]
                    row = f"| `{method}` | {jobs} | {errors['sets']} | "
                    row += " | ".join(f"{100 * size:.1f}" for size in sizes)
                    rescaled = errors.get("rescaled")
                    row += f" | {100 * rescaled['error_90']:.1f} |" if rescaled else " | – |"
                    assert row in told
    mixes = [f"{100 * found['mixes'][method]['error_50']:.1f} %" for method in DEMAND]
    assert " and ".join(mixes) in told


# -- what goes wrong ------------------------------------------------------------------------------


def test_studies_that_are_too_few_to_fit_are_one_line(tmp_path, capsys):
    rows = [number(name, "1x_a", "naive", value=0.5) for name in ("gract", "smact")]
    folder = written(tmp_path / "few", [*rows, number("stp", "2x_a", "mps", value=1.5)])
    before = predict.PREDICTOR_FILE.read_bytes()
    for study, said in ((folder, "at least two jobs"), (tmp_path / "none", "no results")):
        assert collocate(["step", "fit", str(study)]) == 1
        [line] = capsys.readouterr().err.splitlines()
        assert said in line and predict.PREDICTOR_FILE.read_bytes() == before
