"""The explorer's two charts as Vega-Lite, made with Altair; the page's script fills in the data."""

from __future__ import annotations

import altair as alt

from analysis.explorer.timelines import LINES
from analysis.looks import FAINT, GREY, INK

SERIES, PHASES = "series", "phases"  # what the data sets are called
_DASHES = {"gract": [1, 0], "smact": [6, 2], "smocc": [2, 2], "drama": [7, 2, 1, 2]}
_COLOURS = {"gract": INK, "smact": "#0B5394", "smocc": "#9A5B86", "drama": "#2F7D63"}
_FAULT = "#7A1F1F"


def cells() -> dict:
    """Points, means with intervals, reported values and holes over counts, an offset per method.

    The script replaces what begins with @: places, methods (and those of this panel, `here`), their
    colours and shapes (lists of one), and the title of y. It gives the rows: kind, place, label (of
    the method), value, low, high, marks, text, and what a click and the hover need; and drops
    layers of whose kind (`description`) there are none.
    """
    x = alt.X("place:N", sort=["@places"], title=None, axis=alt.Axis(labelAngle=0, labelLimit=220))
    offset = alt.XOffset("label:N", scale=alt.Scale(domain=["@here"]))
    y = alt.Y("value:Q", title="@metric")
    look = {"title": None, "legend": alt.Legend(symbolSize=80)}
    fill = alt.Fill("label:N", scale=alt.Scale(domain=["@methods"], range=["@colours"]), **look)
    shape = alt.Shape("label:N", scale=alt.Scale(domain=["@methods"], range=["@shapes"]), **look)
    hover, said = alt.TooltipContent(content="data"), alt.Description("said:N")

    def of(kind: str) -> alt.Chart:
        return alt.Chart(description=kind).transform_filter(alt.datum.kind == kind)

    def placed(kind: str) -> alt.Chart:
        return of(kind).encode(x=x, xOffset=offset)

    chart = alt.layer(
        of("reference").mark_rule(color=GREY, strokeDash=[4, 3]).encode(y=y),
        placed("interval")
        .mark_rule(color=INK, strokeWidth=1.2)
        .encode(y=alt.Y("low:Q"), y2="high:Q"),
        placed("mean")
        .mark_tick(color=INK, thickness=2, size=16, tooltip=hover)
        .encode(y=y, description=said),
        placed("hole")
        .mark_text(
            angle=270,
            align="left",
            baseline="middle",
            dx=6,
            fontSize=11,
            color=_FAULT,
            cursor="pointer",
            tooltip=hover,
        )
        .encode(y=alt.value("height"), text="text:N", description=said),
        placed("reported")
        .mark_point(
            shape="diamond", size=90, fill="white", stroke=GREY, strokeWidth=1.8, tooltip=hover
        )
        .encode(y=y, description=said),
        placed("point")
        .mark_point(
            size=62, stroke=INK, strokeWidth=0.8, opacity=0.9, cursor="pointer", tooltip=hover
        )
        .encode(y=y, fill=fill, shape=shape, description=said),
        placed("flag")
        .mark_text(align="left", dx=9, dy=-6, fontSize=11, color=INK)
        .encode(y=y, text="marks:N"),
        data=alt.NamedData("rows"),
    )
    return _spec(chart)


def timeline() -> dict:
    """Panels over one time axis; the script gives SERIES (panel, line, t, value), PHASES and the
    lines that there are, and drops panels (`description`) of which it has nothing.
    """
    panels = dict.fromkeys(line.panel for line in LINES)
    charts = [_panel(panel, first=place == 0) for place, panel in enumerate(panels)]
    chart = alt.vconcat(*charts, spacing=8).resolve_scale(
        x="shared", color="independent", strokeDash="independent"
    )
    return _spec(chart)


def _panel(panel: str, first: bool) -> alt.LayerChart:
    lines = [line for line in LINES if line.panel == panel]
    names = [line.label for line in lines]
    x = alt.X("t:Q", title=None, scale=alt.Scale(nice=False))
    data = alt.Chart(alt.NamedData(SERIES)).transform_filter(alt.datum.panel == panel)
    tip = [
        alt.Tooltip("line:N", title="what"),
        alt.Tooltip("t:Q", title="s", format=".1f"),
        alt.Tooltip("value:Q", title=panel, format=".4~g"),
    ]
    legend = None
    if len(lines) > 1:
        legend = alt.Legend(symbolStrokeWidth=2, symbolSize=300, values=["@lines"])
    colours = alt.Color(
        "line:N",
        title=None,
        sort=None,
        scale=alt.Scale(domain=names, range=[_COLOURS.get(line.key, INK) for line in lines]),
        legend=legend,
    )
    dashes = alt.StrokeDash(
        "line:N",
        title=None,
        sort=None,
        scale=alt.Scale(domain=names, range=[_DASHES.get(line.key, [1, 0]) for line in lines]),
        legend=legend,
    )
    line = data.mark_line(strokeWidth=1.6).encode(
        x=x, y=alt.Y("value:Q", title=panel, scale=alt.Scale(zero=True)), color=colours
    )
    line = line.encode(strokeDash=dashes) if len(lines) > 1 else line
    hover = data.mark_point(opacity=0, size=70).encode(x=x, y="value:Q", tooltip=tip)
    phases = alt.Chart(alt.NamedData(PHASES))
    bands = phases.mark_rect(opacity=1).encode(
        x=alt.X("start:Q", title=None),
        x2="end:Q",
        fill=alt.Fill("shade:N", scale=None),
    )
    layers = [bands, line, hover]
    if first:
        said = phases.mark_text(baseline="bottom", dy=-3, fontSize=10, color=GREY)
        layers.append(said.encode(x="middle:Q", y=alt.value(0), text="phase:N"))
    chart = alt.layer(*layers, description=panel)
    return chart.properties(height=150 if first else 70)


def _spec(chart: alt.TopLevelMixin) -> dict:
    chart = (
        chart.configure_view(stroke=None)
        .configure_axis(
            labelColor=INK, titleColor=INK, gridColor=FAINT, domainColor=GREY, titleFontWeight=400
        )
        .configure_legend(orient="top", titleFontWeight=400, labelLimit=240, symbolStrokeColor=INK)
        .configure_title(anchor="start", frame="group", fontSize=14, subtitleColor=GREY, offset=10)
    )
    return chart.to_dict()
