"""docs/sharing-server.md and docs/sharing-client.md: their commands, with the server of one page
for the client of the other, and the official client's program."""

from __future__ import annotations

import json
import re
import signal
import subprocess
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tailer.sharing.profile import load_profile
from tailer.testing.table import TableBuilder
from tests.support.components import free_port
from tests.support.pages import Block, blocks
from tests.support.programs import run_tailer, started, whole_lines
from tests.support.waiting import eventually

SERVER, CLIENT = "docs/sharing-server.md", "docs/sharing-client.md"
LAST = 4


def ok(*arguments: str) -> str:
    done = run_tailer(*arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.needs("official")
def test_the_pages_of_sharing_do_what_they_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, client_python: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    table = TableBuilder(tmp_path / "orders", pa.schema([("id", pa.int64())]), cdf=True)
    table.create()
    for number in range(1, LAST + 1):
        table.insert([{"id": number}])
    (config,) = blocks(SERVER, "toml")
    new, serve, background, tokens = blocks(SERVER, "")
    text = config.text.replace("8080", str(free_port()))
    Path("share.toml").write_text(text.replace("/data/orders", str(table.folder)))
    (command,) = new.commands
    Path("alice.share").write_text(ok(*command))
    Path("provider.share").write_text(Path("alice.share").read_text())
    assert serve.commands == background.commands
    with started(*serve.commands[0]) as program:
        _the_client_of_its_page()
        (snippet,) = blocks(SERVER, "python")
        code = snippet.text.replace("delta_sharing.load", "rows = delta_sharing.load")
        command = [str(client_python), "-W", "ignore", "-c", f"{code}print(sorted(rows.id))"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.stdout == "[1, 2, 3, 4]\n", done.stderr
        program.process.send_signal(signal.SIGHUP)
        _its_tokens(tokens)
        assert program.stop() == 0


def _the_client_of_its_page() -> None:
    (block,) = blocks(CLIENT, "")
    shares, tail, read, snapshot, history = block.commands
    eventually(lambda: run_tailer(*shares).returncode == 0)
    assert ok(*shares) == "provider.share#sales.eu.orders\n"
    assert len(ok(*tail, "--to", str(LAST)).splitlines()) == LAST
    ok(*read)
    assert pq.read_table("changes.parquet")["id"].to_pylist() == [3, 4]
    ok(*snapshot)
    assert pq.read_table("rows.parquet").num_rows == LAST
    assert len(ok(*history).splitlines()) > LAST
    feed, store = blocks(CLIENT, "toml")
    Path("tailer.toml").write_text(f'[daemon]\nhttp = ""\n{feed.text}{store.text}')
    with started("run", "tailer.toml") as program:
        eventually(lambda: len(whole_lines(Path("orders.jsonl"))) == LAST + 2, why=lambda: program)
        assert program.stop() == 0


def _its_tokens(block: Block) -> None:
    new, listed, revoke = block.commands
    later = json.loads(ok(*new))
    assert later["expirationTime"]
    ids = re.findall(r"\b[0-9a-f]{12}\b", ok(*listed))
    assert len({*ids}) == 2
    *rest, _ = revoke
    ok(*rest, ids[0])
    ok(*rest[: rest.index("--id")])
    assert run_tailer("shares", "alice.share").returncode != 0


def test_the_profile_of_the_page_is_read(tmp_path: Path) -> None:
    (block,) = blocks(CLIENT, "json")
    path = tmp_path / "page.share"
    path.write_text(block.text)
    profile = load_profile(str(path))
    assert profile.endpoint.startswith("https://sharing.example.org/")
