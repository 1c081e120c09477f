"""docs/azure.md and docs/gcs.md: every command on them, and their configuration, as they stand."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tailer.testing.table import TableBuilder
from tests.clouds.servers import ACCOUNT, KEY, SERVERS, Container, run_cloud
from tests.support.programs import run_tailer, started
from tests.support.source import ROOT
from tests.support.waiting import eventually

PAGES = {"azurite": "azure.md", "gcs_server": "gcs.md"}
LAST = 2


class Page:
    """A page, where its account is the one of the server."""

    target: Container

    def __init__(self, name: str, folder: Path) -> None:
        text = (ROOT / "docs" / name).read_text(encoding="utf-8")
        for before, after in (('"', '"'), ("=", "\n"), ("@", "."), ("//", ".")):
            text = text.replace(f"{before}account{after}", f"{before}{ACCOUNT}{after}")
        text = text.replace("/etc/tailer/account.json", str(folder / "account.json"))
        self.folder = folder
        (commands,) = re.findall(r"```sh\n(.*?)```", text, re.DOTALL)
        self.commands = [shlex.split(line) for line in commands.splitlines()]
        (self.config,) = re.findall(r"```toml\n(.*?)```", text, re.DOTALL)


@pytest.fixture(params=SERVERS[:2])
def page(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Page]:
    """The page of a server with its table in the container `lake`, and its account where the page
    says: key and endpoint in the environment, or a file."""
    table = TableBuilder(tmp_path / "source", pa.schema([("id", pa.int64())]), cdf=True)
    table.create()
    for number in range(LAST):
        table.insert([{"id": number}])
    found = Page(PAGES[request.param], tmp_path)
    with run_cloud("azure" if request.param == "azurite" else "gcs") as server:
        lake: Container = server.container("lake")
        found.target = server.container("ops")
        anyio.run(lake.upload, table.folder, "orders")
        if server.cloud == "azure":
            monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", KEY)
            monkeypatch.setenv("AZURE_STORAGE_ENDPOINT", server.url)
        else:
            account: dict[str, Any] = dict.fromkeys(("private_key", "private_key_id"), "")
            account |= {"client_email": "feed@example.org", "disable_oauth": True}
            account["gcs_base_url"] = server.url
            (tmp_path / "account.json").write_text(json.dumps(account))
            monkeypatch.setenv("GOOGLE_SERVICE_ACCOUNT", str(tmp_path / "account.json"))
            monkeypatch.setenv("GOOGLE_BASE_URL", server.url)
        yield found


def test_the_commands_of_the_page_do_what_it_says(page: Page) -> None:
    assert {command[1] for command in page.commands} == {"read", "tail", "history"}
    for program, name, *arguments in page.commands:
        assert program == "tailer"
        more = ["--to", str(LAST)] if name == "tail" else []
        done = run_tailer(name, *arguments, *more, cwd=page.folder)
        assert (done.returncode, done.stderr) == (0, ""), (name, arguments)
        if name == "read":
            output = page.folder / "changes.parquet"
            assert pq.read_table(output)["id"].to_pylist() == [0, 1]
            output.unlink()
        elif name == "tail":
            assert [json.loads(line)["id"] for line in done.stdout.splitlines()] == [0, 1]
        else:
            assert len(done.stdout.splitlines()) > LAST


def test_the_configuration_of_the_page_runs(page: Page) -> None:
    config = page.folder / "tailer.toml"
    config.write_text(page.config.replace("[daemon]", '[daemon]\nhttp = ""'))
    done = run_tailer("check", config)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    who = f"account {ACCOUNT}, by its key" if "az://" in page.config else "as feed@example.org"
    assert f"; {who}" in done.stdout

    def written() -> list[str]:
        with pytest.MonkeyPatch.context() as environment:
            environment.delenv("GOOGLE_SERVICE_ACCOUNT", raising=False)
            keys = anyio.run(page.target.keys, "changes/orders")
        return [key for key in keys if key.endswith(".parquet")]

    with started("run", config) as program:
        eventually(written)
        program.stop()
    done = run_tailer("offsets", "show", config, "lake/orders")
    assert done.stdout != "none\n", done.stderr
