"""Figures, one module each. A module offers `draw(study, arm) -> (figure, drawn data)`."""

from analysis.figures import epoch_time, throughput_gain

FIGURES = {"epoch_time": epoch_time.draw, "throughput_gain": throughput_gain.draw}
