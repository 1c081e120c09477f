"""The dashboards in deploy/grafana: ``python -m tools.dashboards`` writes them from these lists.

A panel is its title, unit, queries with their legends, and what must be known to read it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tests.support.source import ROOT

FOLDER = ROOT / "deploy" / "grafana" / "dashboards"
_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
_COLUMNS, _WIDTH, _HEIGHT = 24, 8, 8
_FEED = '{feed=~"$feed"}'
_PROCESS = '{job="delta-tailer"}'
_TROUBLE = 'tailer_feed_state{state=~"failed|blocked|retrying"} == 1'
_LOSS = "min by (feed, cause) (tailer_time_to_data_loss_seconds < +Inf)"
_LOSS_IS = "Until log cleanup or VACUUM may remove what is unread; nothing is shown if all is read."
# A name in a legend leads to the dashboard of the feed.
_TO_FEED = {"title": "The feed", "url": "/d/delta-tailer-feed?var-feed=${__field.labels.feed}"}


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel. ``queries`` are legends and expressions, a ``stat`` has one of them."""

    title: str
    unit: str
    queries: Mapping[str, str]
    about: str = ""
    kind: str = "timeseries"
    width: int = _WIDTH

    def to_json(self, number: int, x: int, y: int) -> dict[str, Any]:
        """The panel as Grafana loads it, at a place."""
        defaults: dict[str, Any] = {"unit": self.unit}
        if self.kind == "timeseries":
            defaults["min"] = 0
        if any("{{feed}}" in legend for legend in self.queries):
            defaults["links"] = [_TO_FEED]
        targets = [
            {
                "refId": chr(ord("A") + i),
                "expr": expr,
                "legendFormat": legend,
                "datasource": _SOURCE,
            }
            for i, (legend, expr) in enumerate(self.queries.items())
        ]
        return {
            "id": number,
            "title": self.title,
            "description": self.about,
            "type": self.kind,
            "datasource": _SOURCE,
            "gridPos": {"x": x, "y": y, "w": self.width, "h": _HEIGHT},
            "fieldConfig": {"defaults": defaults, "overrides": []},
            "targets": targets,
        }


def _rate(metric: str, by: str, select: str = "", function: str = "rate") -> str:
    return f"sum by ({by}) ({function}({metric}{select}[$__rate_interval]))"


def _quantiles(metric: str, by: str, select: str = "") -> Mapping[str, str]:
    """The median and the 99th percentile of a histogram, by a label."""
    buckets = _rate(f"{metric}_bucket", f"{by}, le", select)
    return {
        f"{{{{{by}}}}} p{quantile * 100:g}": f"histogram_quantile({quantile}, {buckets})"
        for quantile in (0.5, 0.99)
    }


_OVERVIEW = (
    Panel(
        "Feeds in trouble", "short", {"": f"count({_TROUBLE}) or vector(0)"}, kind="stat", width=6
    ),
    Panel(
        "Feeds", "short", {"": "count(count by (feed) (tailer_feed_state))"}, kind="stat", width=6
    ),
    Panel(
        "Shortest time to data loss",
        "s",
        {"": "min(tailer_time_to_data_loss_seconds < +Inf)"},
        "No data: nothing unread can be removed.",
        "stat",
        6,
    ),
    Panel(
        "Events",
        "ops",
        {"": "sum(rate(tailer_events_total[$__rate_interval]))"},
        kind="stat",
        width=6,
    ),
    Panel("Feeds by state", "short", {"{{state}}": "count by (state) (tailer_feed_state == 1)"}),
    Panel(
        "Which are in trouble",
        "short",
        {"{{feed}} {{state}}": f"max by (feed, state) ({_TROUBLE})"},
        "The console of the daemon says why, and the order that mends it.",
    ),
    Panel(
        "Feeds without an owner",
        "short",
        {"{{feed}}": "sum by (feed) (tailer_lease_held) == bool 0"},
        "1: no replica holds the feed's lease.",
    ),
    Panel(
        "Lag, the ten longest", "s", {"{{feed}}": "topk(10, max by (feed) (tailer_lag_seconds))"}
    ),
    Panel(
        "Time to data loss, the ten shortest",
        "s",
        {"{{feed}} ({{cause}})": f"bottomk(10, {_LOSS})"},
        _LOSS_IS,
    ),
    Panel(
        "Events, the ten busiest",
        "ops",
        {"{{feed}}": f"topk(10, {_rate('tailer_events_total', 'feed')})"},
    ),
)
_ONE_FEED = (
    Panel(
        "State",
        "short",
        {"{{feed}} {{state}}": f"max by (feed, state) (tailer_feed_state{_FEED} == 1)"},
    ),
    Panel("Lag", "s", {"{{feed}}": f"max by (feed) (tailer_lag_seconds{_FEED})"}),
    Panel("Unread versions", "short", {"{{feed}}": f"max by (feed) (tailer_lag_versions{_FEED})"}),
    Panel("Unread bytes", "bytes", {"{{feed}}": f"max by (feed) (tailer_lag_bytes{_FEED})"}),
    Panel("Unread rows", "short", {"{{feed}}": f"max by (feed) (tailer_lag_rows{_FEED})"}),
    Panel(
        "Time to data loss",
        "s",
        {"{{feed}} ({{cause}})": _LOSS.replace(" < ", f"{_FEED} < ")},
        _LOSS_IS,
    ),
    Panel("Events", "ops", {"{{change_type}}": _rate("tailer_events_total", "change_type", _FEED)}),
    Panel(
        "Commit to delivery", "s", _quantiles("tailer_commit_to_delivery_seconds", "feed", _FEED)
    ),
    Panel("Sink writes", "s", _quantiles("tailer_sink_write_seconds", "feed", _FEED)),
    Panel(
        "Batches that wait for the sink",
        "short",
        {"{{feed}}": f"max by (feed) (tailer_queue_batches{_FEED})"},
        "Always 2: the sink is the slower side.",
    ),
    Panel("Bytes read", "Bps", {"{{feed}}": _rate("tailer_read_bytes_total", "feed", _FEED)}),
    Panel(
        "Errors and retries",
        "short",
        {
            "{{feed}} {{family}}": _rate("tailer_errors_total", "feed, family", _FEED, "increase"),
            "{{feed}} retries": _rate("tailer_retries_total", "feed", _FEED, "increase"),
        },
    ),
    Panel("Parked rows", "short", {"{{feed}}": f"max by (feed) (tailer_parked_rows{_FEED})"}),
    Panel(
        "Parked and lost",
        "short",
        {
            "{{feed}} parked events": _rate(
                "tailer_parked_events_total", "feed", _FEED, "increase"
            ),
            "{{feed}} lost {{unit}}s": _rate(
                "tailer_data_loss_total", "feed, unit", _FEED, "increase"
            ),
        },
    ),
)
_STORES = (
    Panel(
        "Store requests",
        "reqps",
        {"{{operation}}": _rate("tailer_store_requests_total", "operation")},
    ),
    Panel("Store answers", "reqps", {"{{status}}": _rate("tailer_store_requests_total", "status")}),
    Panel(
        "Repeated requests",
        "reqps",
        {"{{operation}}": _rate("tailer_store_retries_total", "operation")},
    ),
    Panel(
        "Bytes from stores", "Bps", {"{{instance}}": _rate("tailer_store_bytes_total", "instance")}
    ),
    Panel("Memory", "bytes", {"{{instance}}": f"process_resident_memory_bytes{_PROCESS}"}),
    Panel(
        "Processor",
        "percentunit",
        {"{{instance}}": f"rate(process_cpu_seconds_total{_PROCESS}[$__rate_interval])"},
        "100 %: one core. Divide the feeds among processes if it stays there.",
    ),
    Panel(
        "File descriptors in use",
        "percentunit",
        {"{{instance}}": f"process_open_fds{_PROCESS} / process_max_fds{_PROCESS}"},
    ),
    Panel("Running for", "s", {"{{instance}}": f"time() - process_start_time_seconds{_PROCESS}"}),
)
_SHARING = (
    Panel("Requests", "reqps", {"{{endpoint}}": _rate("tailer_share_requests_total", "endpoint")}),
    Panel("Answers", "reqps", {"{{status}}": _rate("tailer_share_requests_total", "status")}),
    Panel(
        "Failures of the server",
        "reqps",
        {
            "{{endpoint}} {{status}}": _rate(
                "tailer_share_requests_total", "endpoint, status", '{status=~"5.."}'
            )
        },
        "Its log has the reason.",
    ),
    Panel(
        "Refused",
        "reqps",
        {"{{status}}": _rate("tailer_share_requests_total", "status", '{status=~"401|403|429"}')},
        "401 and 403: wrong, expired or altered tokens and URLs. 429: the limit of a recipient.",
    ),
    Panel("Time of a request", "s", _quantiles("tailer_share_request_seconds", "endpoint")),
    Panel(
        "Bytes sent", "Bps", {"{{endpoint}}": _rate("tailer_share_sent_bytes_total", "endpoint")}
    ),
)
_BOARDS = {
    "overview": ("delta-tailer: overview", _OVERVIEW),
    "feed": ("delta-tailer: one feed", _ONE_FEED),
    "stores": ("delta-tailer: stores and process", _STORES),
    "sharing": ("delta-tailer: sharing server", _SHARING),
}


def _placed(panels: tuple[Panel, ...]) -> Iterator[dict[str, Any]]:
    """The panels in rows, from left to right."""
    x = y = 0
    for number, panel in enumerate(panels, 1):
        if x + panel.width > _COLUMNS:
            x, y = 0, y + _HEIGHT
        yield panel.to_json(number, x, y)
        x += panel.width


def _variables(panels: tuple[Panel, ...]) -> Iterator[dict[str, Any]]:
    yield {
        "name": "datasource",
        "label": "Data source",
        "type": "datasource",
        "query": "prometheus",
    }
    if any("$feed" in expr for panel in panels for expr in panel.queries.values()):
        query = {"query": "label_values(tailer_feed_state, feed)", "refId": "feed"}
        yield {
            "name": "feed", "label": "Feed", "type": "query", "datasource": _SOURCE, "query": query,
            "refresh": 2, "multi": True,
        }  # fmt: skip


def dashboards() -> dict[str, dict[str, Any]]:
    """The dashboards by the names of their files."""
    return {
        f"{name}.json": {
            "title": title,
            "uid": f"delta-tailer-{name}",
            "tags": ["delta-tailer"],
            "schemaVersion": 39,
            "refresh": "15s",
            "time": {"from": "now-6h", "to": "now"},
            "links": [{"type": "dashboards", "tags": ["delta-tailer"], "keepTime": True}],
            "templating": {"list": [*_variables(panels)]},
            "panels": [*_placed(panels)],
        }
        for name, (title, panels) in _BOARDS.items()
    }


if __name__ == "__main__":
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, board in dashboards().items():
        (FOLDER / name).write_text(json.dumps(board, indent=1) + "\n", encoding="utf-8")
