"""Which source tells what a GPU does: the card is asked, best first.

A source has a name and gives activity metrics of a card and its GPU instances ("gpu", "gi:<id>"):
`tick` their rates since the tick before, `open` an end of a span, `span` what lies between two.
"""

from workflow.collocation.telemetry.dcgm import Dcgm
from workflow.collocation.telemetry.gpm import Gpm
from workflow.collocation.telemetry.vocabulary import Unavailable

Source = Gpm | Dcgm
BEST_FIRST = {"gpm": Gpm, "dcgm": Dcgm}


def open_source(uuid: str, entities: list[str], wanted: str = "auto") -> tuple[Source | None, str]:
    """The source to use, None for plain NVML, and a sentence that says why that one.

    wanted: "auto", "gpm", "dcgm" or "nvml". Raises Unavailable with one line where the one that was
    asked for cannot be had. It may wait a second or two for the first values.
    """
    if wanted == "nvml":
        return None, "plain NVML was asked for"
    if wanted != "auto":
        try:
            return BEST_FIRST[wanted](uuid, entities), f"{wanted} was asked for, and answers"
        except Unavailable as why:
            raise Unavailable(f"telemetry source {wanted}: {why}") from None
    not_these = ""
    for name, make in BEST_FIRST.items():
        try:
            return make(uuid, entities), f"{name} answers{not_these}"
        except Unavailable as why:
            not_these += f"; not {name}: {why}"
    return None, f"plain NVML is all there is{not_these}"
