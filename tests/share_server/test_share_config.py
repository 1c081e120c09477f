from __future__ import annotations

from pathlib import Path

import pytest

from tailer.cli.main import main
from tailer.errors import ConfigError
from tailer.share_server.config import ShareConfig, load_share_config

TABLE = '[shares.s.schemas.x.tables.t]\nlocation = "t"\n'


def load(folder: Path, text: str, **environment: str) -> ShareConfig:
    path = folder / "share.toml"
    path.write_text(text)
    return load_share_config(path, environment)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "shares is empty"),
        ("[share]\nport = 1\n" + TABLE, "share.port is not known"),
        ("x = 1\n" + TABLE, "x is not known"),
        ("[share]\naddress = '8080'\n" + TABLE, "share.address is '8080'"),
        ("[share]\npublic_url = 'ftp://x'\n" + TABLE, "share.public_url is 'ftp://x'"),
        ("[share]\npublic_url = 'http://[x'\n" + TABLE, "share.public_url is 'http://[x'"),
        ("[share]\nurl_ttl_s = 0\n" + TABLE, "share.url_ttl_s is 0"),
        ("[share]\nurl_ttl_s = true\n" + TABLE, "share.url_ttl_s is True"),
        ("[share]\ntls_cert = 'a'\n" + TABLE, "share.tls_cert and tls_key go together"),
        ("[share]\nsigning_key = 'short'\n" + TABLE, "signing_key has fewer than 16 bytes"),
        ("[share]\nsigning_key = '${KEY}'\n" + TABLE, "environment variable KEY is not set"),
        (TABLE + "cdf = 'yes'\n", "tables.t.cdf is 'yes'"),
        (TABLE + "mode = 1\n", "tables.t.mode is not known"),
        ("[shares.s.schemas.x.tables.t]\n", "tables.t.location is missing"),
        (TABLE + TABLE.replace(".s.", ".S."), "collides with 's'"),
        (TABLE + TABLE.replace("tables.t", "tables.T"), "collides with 't'"),
        (TABLE + TABLE.replace(".x.", ".X."), "collides with 'x'"),
        (TABLE.replace(".t]", '."a.b"]'), "has a name that is empty, or has a dot"),
        (TABLE.replace(".t]", '."a/b"]'), "has a name that is empty, or has a dot"),
        ("[recipients.a]\ngrants = ['s.y']\n" + TABLE, "recipients.a.grants names 's.y'"),
        ("[recipients.a]\ngrants = 's'\n" + TABLE, "recipients.a.grants is 's'"),
        ("[recipients.a]\nrole = 1\n" + TABLE, "recipients.a.role is not known"),
    ],
)
def test_a_mistake_is_one_sentence_that_names_its_key(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        load(tmp_path, text)
    assert said in str(refusal.value)
    assert str(tmp_path / "share.toml") in str(refusal.value)


def test_names_of_other_programs_tables_may_be_names_of_shares(tmp_path: Path) -> None:
    text = "[feeds.x]\ntable = '${NOWHERE}'\n" + TABLE.replace(".s.", ".feeds.")
    found = load(tmp_path, text)
    assert [table.share for table in found.catalog.list_tables()] == ["feeds"]


def test_an_address_of_ipv6_and_a_chosen_port_make_a_url(tmp_path: Path) -> None:
    loaded = load(tmp_path, "[share]\naddress = '[::1]:0'\n" + TABLE)
    assert loaded.leads_nowhere
    assert loaded.with_port(8080).public_url == "http://[::1]:8080"


def test_a_key_from_the_environment_is_in_no_repr(tmp_path: Path) -> None:
    config = load(tmp_path, "[share]\nsigning_key = '${KEY}'\n" + TABLE, KEY="a long enough secret")
    assert "long enough" not in repr(config)


def test_commands_refuse_with_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "share.toml"
    path.write_text("[recipients.alice]\ngrants = []\n" + TABLE)
    for words, said in (
        (["token", "new", str(path)], "needs a RECIPIENT"),
        (["token", "new", str(path), "carol"], "no recipients.carol; it has alice"),
        (["token", "new", str(path), "alice", "--expires-in", "soon"], "must be like 90d"),
        (["token", "make", str(path)], "no action 'make'; type share token new|revoke|list"),
        (["token"], "an action missing"),
        ([str(path), "more"], "takes one file"),
        ([str(tmp_path / "none.toml")], "can't be read"),
    ):
        assert main(["share", *words]) == 2
        assert said in capsys.readouterr().err
    assert main(["share", "token", "revoke", str(path), "alice"]) == 1
    assert main(["share", "token", "new", str(path), "alice"]) == 0
    assert main(["share", "token", "revoke", str(path), "alice"]) == 0
