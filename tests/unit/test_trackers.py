"""What keeps trackers off their servers while a script is measured."""

import pytest

from analysis.advice.job.trackers import TRACKERS_OFFLINE, offline_trackers

MLFLOW = "MLFLOW_TRACKING_URI"
LOCAL = {MLFLOW: ""}


@pytest.mark.parametrize(
    ("environment", "removed", "added"),
    [
        ({"HOME": "/root"}, set(), {}),
        ({"WANDB_MODE": "online"}, {"WANDB_MODE"}, {}),
        ({"WANDB_MODE": "disabled", "NEPTUNE_MODE": ""}, {"WANDB_MODE", "NEPTUNE_MODE"}, {}),
        *(({name: "x"}, {name}, {}) for name in TRACKERS_OFFLINE),
        ({MLFLOW: "http://tracking:5000"}, set(), LOCAL),
        ({MLFLOW: "https://tracking/x"}, set(), LOCAL),
        ({MLFLOW: "databricks"}, set(), LOCAL),
        ({MLFLOW: "databricks://profile"}, set(), LOCAL),
        ({MLFLOW: "sqlite:///http.db"}, set(), {}),
        ({MLFLOW: "file:mlruns"}, set(), {}),
        ({MLFLOW: ""}, set(), {}),
    ],
)
def test_trackers_write_to_local_files_unless_the_user_says_otherwise(environment, removed, added):
    kept = {n: value for n, value in TRACKERS_OFFLINE.items() if n not in removed}
    assert offline_trackers(environment) == kept | added
