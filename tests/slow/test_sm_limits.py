"""python -m bench.sm_limits: what counts as wrong, its tables, and the whole on a fake card."""

import math
import tempfile

import pandas as pd
import pytest

from tests.fakes import machine
from tests.fakes.card import FakeCard

torch = pytest.importorskip("torch")

from bench import limited_client, sm_limits  # noqa: E402
from bench.limited_client import Operation  # noqa: E402
from paper import findings  # noqa: E402

CPU = torch.device("cpu")
OUTPUTS = [  # of repeated products of ones, which are 64 or 1 too large or no number; wrong are
    ([0, 0, 0], 0),
    ([0, 1, 0], 0),
    ([0, 64, 0], 1),
    ([64, math.nan, math.inf], 3),
]


@pytest.mark.parametrize(("added", "wrong"), OUTPUTS)
def test_a_product_counts_as_wrong_as_often_as_it_was(monkeypatch, added, wrong):
    left = []
    monkeypatch.setattr(torch, "randn", lambda shape, **_: torch.ones(shape))

    def product(first, second):
        if first.dtype == torch.float64:
            left[:] = added  # the reference comes first
            return first @ second
        return first @ second + left.pop(0)

    made = Operation(product, lambda n: [(n, n)] * 2, (64, 128), ("bf16",))
    monkeypatch.setattr(limited_client, "OPERATIONS", {"matmul": made})
    [line] = limited_client.products(CPU, largest=64)
    assert (line["wrong_repeats"], line["repeats"], line["size"]) == (wrong, 3, 64)
    assert math.isnan(line["relative_error"]) is any(map(math.isnan, added))


def test_float64_is_held_against_sums():
    first, second = torch.randn(2, 64, 64, dtype=torch.float64)
    product = first @ second
    assert limited_client.float64_error(first, second, product) < 1e-12
    product[3, 5] += 1
    assert limited_client.float64_error(first, second, product) > 1e-3


def lines(work: str, percent: float) -> list[dict]:
    """What a client prints; one at 10 % ends before it says anything."""
    if percent == 10:
        return []
    client = {"sm_count": int(1.32 * percent), "torch": "2.11", "cublas": "13.1.0"}
    kinds = [("matmul", "bf16"), ("matmul", "tf32"), ("SDPA", "bf16")]
    made = [{"operation": op, "dtype": dtype, "size": n} for op, dtype in kinds for n in (256, 512)]
    for line in made:
        hit = percent == 60 and line["dtype"] == "bf16" and line["size"] == 512
        line |= {"relative_error": math.nan if hit else 1e-3, "repeats": 3}
        line["wrong_repeats"] = 2 * (hit and line["operation"] == "matmul")
    losses = [{"width": 256, "step": step, "loss": 5.5 - step} for step in (0, 1)]
    return [client, *(made if work == "products" else losses)]


def test_tables_say_of_which_products_how_many_sizes_were_wrong():
    made = sm_limits.table("products", [100, 60, 10], 2, FakeCard(), lines)
    assert len(made) == 12 and {*made["gpu"]} == {"a card that is not there"}
    text = sm_limits.products_text(made.iloc[:-1])  # a client that ended before its last product
    head, _, *rows = [line for line in text.splitlines() if line.startswith("|")]
    assert head == "| limit | SMs | matmul bf16 | matmul tf32 | SDPA bf16 |"
    assert rows == [
        "| 100 % | 132 | 0 of 2 | 0 of 2 | 0 of 2 |",
        "| 60 % | 79 | 1 of 2 | 0 of 2 | 0 of 1 |",
    ]
    trained = sm_limits.table("training", [100, 60], 2, FakeCard(), lines)
    text = sm_limits.training_text(trained)
    assert [line for line in text.splitlines() if "%" in line] == [
        "| 256 | 60 % | 5.5000 | 4.5000 | nan | nan | nan | nan | nan |",
        "| 256 | 100 % | 5.5000 | 4.5000 | nan | nan | nan | nan | nan |",
    ]


def test_the_record_of_training_says_when_losses_became_nan(tmp_path, monkeypatch):
    monkeypatch.setattr(findings, "RESULTS", tmp_path)
    losses = [(50, 256, [3, 2, 1]), (60, 256, [3, "nan", "nan"]), (60, 512, ["nan"] * 4)]
    lines = [
        f"{percent},H100,{width},{step},{loss}"
        for percent, width, each in losses
        for step, loss in enumerate(each)
    ]
    (tmp_path / "limited_training.csv").write_text(
        "percent,gpu,width,step,loss\n" + "\n".join(lines)
    )
    trained = findings.limited_training()
    assert trained.loc[60].to_list() == [2, 3, 2]
    assert trained.loc[50, ["runs", "steps"]].to_list() == [1, 3]
    assert trained["steps_until_nan"].isna().to_list() == [True, False]


def test_recorded_tables_say_which_limits_were_right(tmp_path, monkeypatch):
    """Without 100 %, and without one whose client ended before its last product."""
    monkeypatch.setattr(findings, "RESULTS", tmp_path)
    assert [*findings.sm_limits()] == []
    made = sm_limits.table("products", [100, 60, 50, 33, 12.5], 2, FakeCard(), lines)
    made = made[(made["percent"] != 33) | (made["operation"] != "SDPA")]
    made.to_csv(tmp_path / "sm_limits_h100.csv", index=False, na_rep="nan")
    [card] = findings.sm_limits()
    assert card == {
        "gpu": FakeCard.name,
        "driver": FakeCard.driver,
        "file": "sm_limits_h100.csv",
        "right": ["50", "12.5"],
    }


def test_a_limit_that_is_not_in_force_or_no_client_at_all_writes_nothing():
    with pytest.raises(SystemExit, match="60 % was not in force"):
        sm_limits.table("products", [60], 1, FakeCard(sm_count=79), lines)
    with pytest.raises(SystemExit, match="no client made products"):
        sm_limits.table("products", [10], 1, FakeCard(), lines)


def test_the_command_on_a_card_that_is_not_there(tmp_path, monkeypatch, capsys):
    """Its clients compute on the CPU."""
    with tempfile.TemporaryDirectory(prefix="t-") as short:  # for sockets
        for name, value in machine.create(tmp_path / "machine").items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("COLLOCATION_LOCK_DIR", str(tmp_path / "locks"))
        monkeypatch.setattr(tempfile, "tempdir", short)
        options = ["--percent", "50", "--largest", "128"]
        with machine.installed(tmp_path / "machine"):
            assert sm_limits.main(["--out", str(tmp_path / "out"), *options]) == 0
    made = pd.read_csv(tmp_path / "out" / "sm_limits.csv")
    assert {*made["percent"]} == {50} and not made["wrong_repeats"].any()
    assert {*made["dtype"]} == {"bf16", "fp16", "tf32"}
    printed = capsys.readouterr().out
    assert printed.endswith((tmp_path / "out" / "sm_limits.md").read_text() + "\n")
