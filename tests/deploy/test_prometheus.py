"""The alert rules and the dashboards, against a real Prometheus that scrapes the real daemon."""

from __future__ import annotations

import json
import re
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pyarrow as pa
import pytest
import yaml
from prometheus_client import CollectorRegistry, generate_latest

from tailer.share_server.guard import ShareMetrics
from tailer.testing.table import TableBuilder
from tests.deploy.test_files import DEPLOY, accepted, program
from tests.house.test_links import anchors
from tests.support.components import free_port
from tests.support.programs import started
from tests.support.source import ROOT
from tests.support.waiting import eventually
from tools.dashboards import FOLDER, dashboards

RULES = DEPLOY / "prometheus"
# Of the process and of Prometheus itself, or only there once something has happened.
RARE = {"tailer_errors_total", "tailer_data_loss_total", "up"}


def fetched(url: str) -> str:
    try:
        with urllib.request.urlopen(url, timeout=100) as answer:  # noqa: S310  # of our own making
            return str(answer.read().decode())
    except urllib.error.HTTPError as e:
        e.close()
        raise


class Prometheus:
    """A running Prometheus."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"

    def get(self, path: str, **parameters: str) -> Any:
        answer = json.loads(
            fetched(f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(parameters)}")
        )
        assert answer["status"] == "success"
        return answer["data"]

    def until(self, query: str) -> Any:
        """Wait until a query has a result."""

        def result() -> Any:
            with suppress(urllib.error.URLError, ConnectionError):  # it is only starting
                return self.get("query", query=query)["result"]

        return eventually(result, why=f"{query} gave nothing", pause_s=0.1)


@pytest.fixture(scope="module")
def daemon_port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """A daemon that has delivered something, and its port."""
    folder, port = tmp_path_factory.mktemp("daemon"), free_port()
    table = TableBuilder(folder / "orders", pa.schema([("id", pa.int64())]), cdf=True)
    table.create()
    table.insert([{"id": 1}])
    (folder / "tailer.toml").write_text(
        f'[daemon]\nhttp = "127.0.0.1:{port}"\n[feeds.orders]\ntable = "orders"\n'
        'from = "earliest"\non_reject = "park"\n'
        '[feeds.orders.sink]\ntype = "jsonl"\npath = "orders.jsonl"\n'
    )
    with started("run", folder / "tailer.toml") as running:
        running.wait_for((folder / "orders.jsonl").exists)
        yield port


@pytest.fixture(scope="module")
def prometheus(daemon_port: int, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """Prometheus with the shipped rules, scraping the daemon every second."""
    binary = program("prometheus")
    folder, port = tmp_path_factory.mktemp("prometheus"), free_port()
    config = (RULES / "prometheus.yml").read_text()
    for old, new in (
        ("daemon:9464", f"127.0.0.1:{daemon_port}"),
        ("alerts.yml", str(RULES / "alerts.yml")),
        ("15s", "1s"),
    ):
        assert old in config
        config = config.replace(old, new)
    (folder / "prometheus.yml").write_text(config)
    command = [
        binary, f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={folder}",
        f"--web.listen-address=127.0.0.1:{port}", "--log.level=error",
    ]  # fmt: skip
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        try:
            yield Prometheus(port)
        finally:
            process.kill()


def expressions() -> list[str]:
    """Every expression of the dashboards, with their variables filled in."""
    found = [
        target["expr"]
        for board in dashboards().values()
        for panel in board["panels"]
        for target in panel["targets"]
    ]
    return [e.replace("$feed", ".*").replace("$__rate_interval", "1m") for e in found]


def test_the_dashboards_are_as_they_are_written() -> None:
    files = {file.name: json.loads(file.read_text()) for file in FOLDER.iterdir()}
    assert files == dashboards(), "run `python -m tools.dashboards`"


def test_the_composition_gives_grafana_its_dashboards_and_where_to_ask() -> None:
    services = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
    folders = {}
    for volume in services["grafana"]["volumes"]:
        here, inside, _ = volume.split(":")
        folders[inside] = (DEPLOY / here).resolve()
    provisioning = folders["/etc/grafana/provisioning"]
    (source,) = yaml.safe_load((provisioning / "datasources" / "prometheus.yaml").read_text())[
        "datasources"
    ]
    assert source["url"] == "http://prometheus:9090"
    assert "prometheus" in services
    (provider,) = yaml.safe_load((provisioning / "dashboards" / "delta-tailer.yaml").read_text())[
        "providers"
    ]
    assert folders[provider["options"]["path"]] == FOLDER
    home = services["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert (FOLDER / home.removeprefix(f"{provider['options']['path']}/")).exists()


def test_the_alert_rules_fire_when_they_should_and_only_then() -> None:
    promtool = program("promtool")
    accepted(promtool, "check", "config", "prometheus.yml", cwd=RULES)
    accepted(promtool, "test", "rules", "alerts_test.yml", cwd=RULES)


def test_every_rule_is_tried() -> None:
    rules = set(re.findall(r"- alert: (\w+)", (RULES / "alerts.yml").read_text()))
    tried = set(re.findall(r"alertname: (\w+)", (RULES / "alerts_test.yml").read_text()))
    assert rules == tried


def test_every_alert_links_to_its_section_of_the_runbook() -> None:
    site = yaml.safe_load(
        (ROOT / "mkdocs.yml").read_text().replace("!!python/name:", "")  # not to be loaded here
    )
    (group,) = yaml.safe_load((RULES / "alerts.yml").read_text())["groups"]
    sections = set()
    for rule in group["rules"]:
        link, _, anchor = rule["annotations"]["runbook_url"].partition("#")
        page = ROOT / link.removeprefix(f"{site['repo_url']}/blob/main/")
        assert anchor == rule["alert"].lower()
        assert anchor in anchors(page.read_text())
        sections.add(anchor)
    # And no section is of an alert that is gone.
    assert anchors((ROOT / "docs" / "runbook.md").read_text()) == {"runbook", *sections}


def test_what_rules_and_dashboards_ask_for_is_what_is_told(daemon_port: int) -> None:
    metrics = fetched(f"http://127.0.0.1:{daemon_port}/metrics")
    registry = CollectorRegistry()
    ShareMetrics(registry)
    metrics += generate_latest(registry).decode()
    told = set(re.findall(r"^# TYPE (\w+)", metrics, re.MULTILINE))
    asked = " ".join([*expressions(), (RULES / "alerts.yml").read_text()])
    names = {
        name.removesuffix("_bucket")
        for name in re.findall(r"\b((?:tailer|process)_[a-z_]+)\b", asked)
    }
    assert len(names) > 10
    assert names <= told | RARE


def test_a_real_prometheus_scrapes_the_daemon_and_no_alert_fires(prometheus: Prometheus) -> None:
    [up] = prometheus.until('up{job="delta-tailer"}')
    assert up["value"][1] == "1"
    [state] = prometheus.until('tailer_feed_state{state="following"} == 1')
    assert state["metric"]["feed"] == "orders"
    for expression in expressions():
        prometheus.get("query", query=expression)
    rules = prometheus.get("rules")["groups"][0]["rules"]
    assert {rule["health"] for rule in rules} <= {"ok", "unknown"}
    assert prometheus.get("alerts")["alerts"] == []
