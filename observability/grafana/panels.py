"""What dashboards are made of: selectors, queries, panels, pages.

Figures are summed over all that namespace and instance leave: two sidecars of one broker count it
twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from grafana_foundation_sdk.builders import common as shown
from grafana_foundation_sdk.builders import dashboard as board
from grafana_foundation_sdk.builders import prometheus, stat, timeseries
from grafana_foundation_sdk.models import common, dashboard, units

SOURCE = dashboard.DataSourceRef(type_val="prometheus", uid="${datasource}")
EVERYWHERE = 'namespace=~"$namespace", instance=~"$instance"'

Steps = Sequence[tuple[float | None, str]]
"""Colors, each with the value that it begins at; None for the first."""

PLAIN: Steps = [(None, "blue")]
"""Grafana's own default turns red at 80, whatever that is 80 of."""

NONE_IS_GOOD: Steps = [(None, "green"), (1, "red")]
NONE_IS_BAD: Steps = [(None, "red"), (1, "green")]


def of(metric: str, *matchers: str) -> str:
    """A selector of one of our metrics, where the variables say."""
    return f"entrepot_{metric}{{{', '.join([*matchers, EVERYWHERE])}}}"


def of_study(metric: str, *matchers: str) -> str:
    return of(metric, 'study=~"$study"', *matchers)


def rate(selector: str) -> str:
    return f"rate({selector}[$__rate_interval])"


def happened(metric: str) -> str:
    """Counts by reason, of those that are not 0: every known reason has a series."""
    return f"sum by (reason) ({of(metric)}) > 0"


def percentiles(metric: str, by: str = "") -> list[tuple[str, str]]:
    """Queries of the 50th, 90th and 99th, by one label more."""
    labels = f"le, {by}" if by else "le"
    summed = f"sum by ({labels}) ({rate(of(f'{metric}_bucket'))})"
    return [
        (f"histogram_quantile({share}, {summed})", f"{{{{{by}}}}} {name}" if by else name)
        for share, name in ((0.5, "p50"), (0.9, "p90"), (0.99, "p99"))
    ]


# --- panels -----------------------------------------------------------------------------


def query(ref: str, expr: str, legend: str) -> prometheus.Dataquery:
    made = prometheus.Dataquery().ref_id(ref).expr(expr).legend_format(legend)
    return made.datasource(SOURCE)


def thresholds(steps: Steps) -> board.ThresholdsConfig:
    return board.ThresholdsConfig().steps(
        [dashboard.Threshold(value=value, color=color) for value, color in steps]
    )


def number(title: str, said: str, unit: str, expr: str, steps: Steps = PLAIN) -> stat.Panel:
    """One figure, as it is now."""
    made = stat.Panel().title(title).description(said).unit(unit).height(4).span(3)
    # Of now alone: what an absent broker said last is not what is.
    made.datasource(SOURCE).with_target(query("A", expr, title).instant())
    made.reduce_options(shown.ReduceDataOptions().calcs(["lastNotNull"]))
    made.color_scheme(board.FieldColor().mode(dashboard.FieldColorModeId.THRESHOLDS))
    made.color_mode(common.BigValueColorMode.VALUE).graph_mode(common.BigValueGraphMode.NONE)
    return made.thresholds(thresholds(steps))


def answers(title: str, said: str, metric: str) -> stat.Panel:
    """Whether something answers."""
    made = number(title, said, units.BoolOnOff, f"min({of(metric)})", NONE_IS_BAD)
    words = {
        "0": dashboard.ValueMappingResult(text="does not answer", color="red", index=0),
        "1": dashboard.ValueMappingResult(text="answers", color="green", index=1),
    }
    return made.mappings([dashboard.ValueMap(options=words)])


def graph(
    title: str,
    said: str,
    unit: str,
    queries: Sequence[tuple[str, str]],
    *,
    steps: Steps = PLAIN,
    stacked: bool = False,
    colors: Mapping[str, str] | None = None,
    span: int = 12,
    from_zero: bool = True,
) -> timeseries.Panel:
    """Lines over time. Thresholds of more than one step are drawn."""
    made = timeseries.Panel().title(title).description(said).unit(unit).height(8).span(span)
    made.datasource(SOURCE)
    for ref, (expr, legend) in zip("ABCDEF", queries, strict=False):
        made.with_target(query(ref, expr, legend).range())
    made.thresholds(thresholds(steps))
    drawn = len(steps) > 1
    style = common.GraphTresholdsStyleMode
    made.thresholds_style(
        shown.GraphThresholdsStyleConfig().mode(style.DASHED if drawn else style.OFF)
    )
    made.color_scheme(board.FieldColor().mode(dashboard.FieldColorModeId.PALETTE_CLASSIC))
    made.show_points(common.VisibilityMode.NEVER).line_width(1)
    made.fill_opacity(25 if stacked else 0)
    if stacked:
        made.stacking(shown.StackingConfig().mode(common.StackingMode.NORMAL).group("A"))
    if from_zero:
        made.min(0)
    for name, color in (colors or {}).items():
        fixed = {"mode": "fixed", "fixedColor": color}
        made.override_by_name(name, [dashboard.DynamicConfigValue(id_val="color", value=fixed)])
    below = shown.VizLegendOptions().show_legend(True).calcs(["lastNotNull", "max"])
    below.display_mode(common.LegendDisplayMode.TABLE)
    made.legend(below.placement(common.LegendPlacement.BOTTOM))
    tooltip = shown.VizTooltipOptions().mode(common.TooltipDisplayMode.MULTI)
    return made.tooltip(tooltip.sort(common.SortOrder.DESCENDING))


# --- dashboards -------------------------------------------------------------------------

Panel = stat.Panel | timeseries.Panel


def variable(name: str, label: str, query: str, *, multi: bool) -> board.QueryVariable:
    """One that is filled from a label. All of them also takes series without the label."""
    made = board.QueryVariable(name).label(label).datasource(SOURCE).query(query).multi(multi)
    made.include_all(True).all_value(".*")
    made.current(dashboard.VariableOption(selected=True, text="All", value="$__all"))
    made.refresh(dashboard.VariableRefresh.ON_TIME_RANGE_CHANGED)
    return made.sort(dashboard.VariableSort.ALPHABETICAL_ASC)


def page(
    title: str,
    uid: str,
    said: str,
    since: str,
    rows: Mapping[str, Sequence[Panel]],
    variables: Sequence[board.QueryVariable] = (),
) -> board.Dashboard:
    """A dashboard that nobody can edit, with the variables that all have and ``variables``."""
    made = board.Dashboard(title).uid(uid).description(said).tags(["entrepot"]).readonly()
    made.time(since, "now").refresh("10s").timezone("browser").version(1)
    made.tooltip(dashboard.DashboardCursorSync.CROSSHAIR)
    other = board.DashboardLink("Entrepot").type(dashboard.DashboardLinkType.DASHBOARDS)
    made.link(other.tags(["entrepot"]).include_vars(True).keep_time(True))
    made.with_variable(
        board.DatasourceVariable("datasource").label("Data source").type("prometheus")
    )
    info = "entrepot_build_info"
    for each in (
        variable("namespace", "Namespace", f"label_values({info}, namespace)", multi=False),
        variable(
            "instance",
            "Instance",
            f'label_values({info}{{namespace=~"$namespace"}}, instance)',
            multi=True,
        ),
        *variables,
    ):
        made.with_variable(each)
    last = 0
    for name, panels in rows.items():
        last += 1
        made.with_row(board.Row(name).id(last))
        for panel in panels:
            last += 1
            made.with_panel(panel.id(last))
    return made
