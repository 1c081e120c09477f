"""Commands, feeds, patterns and Python programs on tables of a catalog."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tailer.config.feeds import Config, load_config
from tailer.daemon.assembly import find_pattern_feeds
from tailer.errors import ConfigError
from tests.catalog.server import TOKEN, CatalogServer
from tests.catalog.writer import ManagedTable
from tests.support.programs import run_tailer
from tests.support.source import ROOT

PAGE = (ROOT / "docs" / "unity-catalog.md").read_text(encoding="utf-8")


def block(language: str) -> str:
    found = re.search(rf"^```{language}\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    assert found is not None
    return found[1]


def test_the_commands_of_the_page_run(
    server: CatalogServer, managed: ManagedTable, tmp_path: Path
) -> None:
    for _ in range(3):
        managed.commit()
    managed.publish()
    seen = 0
    for line in block("sh").splitlines():
        program, *arguments = line.split()
        if program != "tailer":
            assert line.startswith("export DATABRICKS_HOST=https://")  # the environment has it
            continue
        more = ["--to", "3"] if arguments[0] == "tail" else []
        done = run_tailer(*arguments, *more, cwd=tmp_path)
        assert (done.returncode, done.stderr) == (0, ""), line
        seen += 1
        if arguments[0] == "tail":
            assert [json.loads(row)["id"] for row in done.stdout.splitlines()] == [1, 2, 3]
    assert seen == 3
    assert len((tmp_path / "changes.jsonl").read_bytes().splitlines()) == 3
    done = run_tailer("verify", managed.address, "--from", "1", "--to", "3")
    assert (done.returncode, done.stderr) == (0, "")
    assert server.seen("/delta/v1/catalogs/main/schemas/sales/tables/orders") > 4


@pytest.fixture
def config(server: CatalogServer, tmp_path: Path) -> Path:
    """The configuration of the page, with the tests' server and its token."""
    text = block("toml").replace("https://example.cloud.databricks.com", server.endpoint)
    text = re.sub(r"client_id = .*\nclient_secret = .*", 'token = "${file:token}"', text)
    (tmp_path / "token").write_text(TOKEN)
    path = tmp_path / "tailer.toml"
    path.write_text(f'[daemon]\nhttp = ""\n{text}'.replace("from =", "discover_s = 0.1\nfrom ="))
    return path


def test_a_check_says_which_catalog_and_which_account(
    server: CatalogServer, config: Path, managed: ManagedTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HOST", "TOKEN"):
        monkeypatch.delenv(f"DATABRICKS_{name}")
    managed.commit()
    done = run_tailer("check", config)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == (
        f"sales/orders: ok, uc://main.sales.orders (id {managed.table_id}; at {managed.root}, by "
        f"the catalog main at {server.endpoint} as the owner of the token, which ratifies its "
        "commits) to jsonl, from version 0, index 0 (earliest)\n"
    )


def with_pattern(config: Path, pattern: str) -> Config:
    config.write_text(config.read_text().replace("uc://main.sales.*", pattern))
    return load_config(config)


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("uc://main.sales.*", ["a1", "a2", "b1"]),
        ("uc://main.sales.a*", ["1", "2"]),
        ("uc://main.*.*", ["openly/b1", "sales/a1", "sales/a2", "sales/b1"]),
        ("uc://main.empty.*", []),
        ("uc://main.o*.b1", ["penly"]),
    ],
)
async def test_patterns_find_the_tables_of_schemas_page_by_page(
    server: CatalogServer, config: Path, pattern: str, names: list[str]
) -> None:
    server.page_items = 2
    for name in ("a1", "a2", "b1"):
        server.table(name, f"file:///lake/{name}")
    server.table("a3", "file:///lake/a3").form = "CSV"
    server.schemas["openly"] = {"b1": server.schemas["sales"]["b1"]}
    loaded = with_pattern(config, pattern)
    found = await find_pattern_feeds(loaded, loaded.feeds["sales"])
    assert sorted(found.feeds) == [f"sales/{name}" for name in names]
    assert found.refused == {}


@pytest.mark.anyio
@pytest.mark.parametrize("pattern", ["uc://*.sales.orders", "uc://main.*", "uc://main.a.b*/c"])
async def test_other_patterns_are_refused(config: Path, pattern: str) -> None:
    loaded = with_pattern(config, pattern)
    with pytest.raises(ConfigError, match=r"feeds\.sales\.table: .*uc://catalog\.schema\.\*"):
        await find_pattern_feeds(loaded, loaded.feeds["sales"])


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("end_point = 'x'", "catalogs.main: option 'end_point' of the catalog is not known"),
        ("client_id = 'x'", "catalogs.main: client_id and client_secret go together"),
    ],
)
def test_a_mistake_in_a_catalogs_table_is_named(config: Path, line: str, said: str) -> None:
    text = re.sub(r"^(endpoint|token) = .*\n", "", config.read_text(), flags=re.MULTILINE)
    config.write_text(text.replace("[catalogs.main]", f"[catalogs.main]\n{line}"))
    with pytest.raises(ConfigError, match=re.escape(said)):
        load_config(config)
