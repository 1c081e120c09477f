"""What becomes of a server whose state folder fails it."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from tailer.cli.main import main
from tailer.testing.table import TableBuilder
from tests.share_server.serving import configuration, served

Capture = pytest.CaptureFixture[str]


def test_requests_that_can_t_be_recorded_are_in_the_servers_log(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path / "t", pa.schema([("id", pa.int64())]))
    table.create()
    with served(tmp_path, {"s.x.t": table.folder}, share='audit = "/dev/full"') as server:
        assert server.get("/shares").status == 200
        assert server.query("s.x.t").status == 200
        # A query is recorded behind its answer, and the requests in their order.
        server.program.wait_until(lambda: '"endpoint": "query"' in str(server.program))
        assert '"endpoint": "list-shares"' in str(server.program)
        assert "/dev/full: the audit log can't be written (No space" in str(server.program)
        assert server.bearer not in str(server.program)

        tokens = server.state / "tokens.json"
        tokens.write_text("{")
        reply = server.get("/shares")
        assert (reply.status, reply.code) == (500, "INTERNAL_ERROR")
        assert "json" not in reply.json["message"], "no file's name is told"


@pytest.mark.parametrize("action", ["new", "list", "revoke"])
def test_tokens_that_can_t_be_kept_are_one_sentence(
    tmp_path: Path, capsys: Capture, action: str
) -> None:
    config = tmp_path / "share.toml"
    config.write_text(configuration({"s.x.t": "t"}, 'state = "taken"', {"alice": ["s"]}))
    (tmp_path / "taken").write_text("a file is no folder")
    assert main(["share", "token", action, str(config), "alice"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "taken can't be used" in line
    assert "share.state must be a folder" in line
