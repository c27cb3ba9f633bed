"""Variables that keep a script's experiment trackers off their servers while it is measured.

Each tracker then writes to local files instead. aim and trackio do so by default and have no such
variable: what sends their runs elsewhere (aim's repo, TRACKIO_SPACE_ID) is the user's own word. Nor
has comet_ml one for its class Experiment, only for comet_ml.start.
"""

import re
from collections.abc import Mapping

TRACKERS_OFFLINE = {
    "WANDB_MODE": "offline",
    "COMET_START_ONLINE": "false",
    "CLEARML_OFFLINE_MODE": "1",
    "NEPTUNE_MODE": "offline",
    "SWANLAB_MODE": "offline",
}
MLFLOW_URI, MLFLOW_SERVER = "MLFLOW_TRACKING_URI", re.compile(r"https?://|databricks")


def offline_trackers(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables to set for a script; none of those that the user's `environment` sets.

    But for a server of MLflow: its address is replaced by "", which MLflow takes for a local store.
    """
    variables = {n: value for n, value in TRACKERS_OFFLINE.items() if n not in environment}
    if MLFLOW_SERVER.match(environment.get(MLFLOW_URI, "")):
        variables[MLFLOW_URI] = ""
    return variables
