"""Writes the table of docs/performance.md and its plots from docs/performance.json.

    python -m tests.benchmarks.report

`make bench` runs it behind the benchmarks.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.benchmarks.bars import BARS, Bar
from tests.benchmarks.measure import ROOT
from tests.benchmarks.results import BUSY_MIN, read_results
from tests.benchmarks.svg import Bars, bar_plot, line_plot

PAGE = ROOT / "docs/performance.md"
BEGIN, END = "<!-- begin: made by make bench -->", "<!-- end: made by make bench -->"
HEAD = (
    "| work | against | figure | bar | wall, processor | ours | peer |",
    "| --- | --- | --- | --- | --- | --- | --- |",
)


def _figure(bar: Bar, figure: dict[str, Any]) -> str:
    met = "" if figure["value"] <= bar.bound else ", **not met**"
    return f"{figure['value']:.2g} {bar.unit}".strip() + met


def _cost(cost: dict[str, float] | None) -> str:
    if cost is None:
        return ""
    return f"{cost['wall_s']:.2f} s, {cost['cpu_s']:.2f} s CPU, {cost['peak_mib']:.0f} MiB"


def _row(bar: Bar, figure: dict[str, Any] | None) -> str:
    if figure is None:
        cells = [bar.work, bar.against, "not measured", f"{bar.bound:g}", "", "", ""]
        return f"| {' | '.join(cells)} |"
    both = ""
    if "wall" in figure:
        both = f"{figure['wall']:.2f}, {figure['processor']:.2f}"
        both += " (busy)" if figure["others"] > BUSY_MIN else ""
    costs = [_cost(figure.get(side)) for side in ("ours", "peer")]
    cells = [bar.work, bar.against, _figure(bar, figure), f"{bar.bound:g}", both, *costs]
    return f"| {' | '.join(cells)} |"


def table(results: dict[str, Any]) -> str:
    """Return all bars as a Markdown table, with the machines they were measured on."""
    rows = [_row(bar, results.get(name)) for name, bar in BARS.items()]
    machines = sorted({figure["machine"] for figure in results.values()})
    dates = sorted({figure["at"] for figure in results.values()})
    facts = [f"Measured on {', '.join(dates)}:", "", *(f"- {machine}" for machine in machines)]
    return "\n".join([*HEAD, *rows, "", *(facts if dates else [])])


def plots(results: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the names and the texts of the SVG files."""
    rows = [
        Bars(name, figure["value"] / bar.bound, f"{figure['value']:.2g} of {bar.bound:g}")
        for name, bar in BARS.items()
        if (figure := results.get(name))
    ]
    yield "performance-bars.svg", bar_plot("Each figure as a share of its bar (dashed)", rows)
    lines = {
        name.removeprefix("growth-"): [
            (size / figure["sizes"][0], seconds / figure["seconds"][0])
            for size, seconds in zip(figure["sizes"], figure["seconds"], strict=True)
        ]
        for name, figure in results.items()
        if name.startswith("growth-")
    }
    if lines:
        title = "Growth: processor time over size, both of the smallest"
        text = line_plot(title, "times as many", "times the processor time", lines)
        yield "performance-growth.svg", text


def write_report() -> None:
    """Write the table into the page, and the plots beside it."""
    results = {name: figure for name, figure in read_results().items() if name in BARS}
    text = PAGE.read_text()
    before, _, rest = text.partition(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}\n{table(results)}\n{END}{rest.partition(END)[2]}")
    for name, plot in plots(results):
        (PAGE.parent / name).write_text(plot)


if __name__ == "__main__":
    write_report()
