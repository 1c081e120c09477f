"""What ends by itself: refresh tokens, and how much strangers write to the disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.share_server.serving import served
from tests.share_server.test_attacks import table_at
from tests.support.waiting import eventually


def test_a_refresh_token_is_not_good_for_ever(tmp_path: Path) -> None:
    table = table_at(tmp_path / "t")
    asked = "responseformat=parquet;includeendstreamaction=true"
    with served(tmp_path, {"s.x.t": table.folder}, share="url_ttl_s = 1") as server:
        reply = server.query("s.x.t", asked, includeRefreshToken=True)
        refresh = reply.lines[-1]["endStreamAction"]["refreshToken"]

        def refused() -> Any:
            reply = server.query("s.x.t", asked, refreshToken=refresh)
            return reply if reply.status != 200 else None

        old = eventually(refused, why="the refresh token ends", pause_s=0.05)
        assert (old.status, old.code) == (400, "INVALID_PARAMETER_VALUE")
        assert "has expired" in old.json["message"]
        assert server.query("s.x.t", asked).status == 200


def test_strangers_can_t_fill_the_audit_log(tmp_path: Path) -> None:
    table = table_at(tmp_path / "t")
    limits = "requests_per_s = 100000"
    with served(tmp_path, {"s.x.t": table.folder}, share=limits, dev=False) as server:
        name = "n" * 4000
        for number in range(600):
            where = f"/shares/{name}" if number % 2 else "/files/x/y"
            assert server.get(where, bearer="dts_0_guess").status in (401, 403)
        assert server.query("s.x.t").status == 200
    lines = server.audit()
    strange = [line for line in lines if "recipient" not in line]
    assert sum(line.get("requests", 1) for line in strange) == 600
    assert len(strange) < 300
    assert max(map(len, (server.state / "audit.jsonl").read_bytes().splitlines())) < 1000
    assert [line["endpoint"] for line in lines if line.get("recipient")] == ["query"]
