"""Users and passwords: in the URL of a sink, or as options beside it; no error shows them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from tailer.changes import Offset
from tailer.errors import ConfigError, TailerError
from tailer.secrets import hide_secrets
from tailer.sink import make_sink
from tests.support.brokers import PASSWORD, Nats, RabbitMq, Redis
from tests.support.components import free_port
from tests.support.mysql import MYSQL_PASSWORD, Mysql
from tests.support.postgres import Postgres

pytestmark = pytest.mark.anyio

#: The sinks whose servers ask for a password, each with its options for a login and a host.
SINKS: dict[str, Callable[[str], dict[str, Any]]] = {
    "mysql": lambda at: {"url": f"mysql://{at}/lake", "key": ["id"], "tls": False},
    "postgres": lambda at: {"dsn": f"postgresql://{at}/lake", "key": ["id"]},
    "rabbitmq": lambda at: {"url": f"amqp://{at}/", "timeout_s": 1},
    "redis": lambda at: {"url": f"redis://{at}/0", "timeout_s": 1},
    "nats": lambda at: {"servers": [f"nats://{at}"], "timeout_s": 1},
    "clickhouse": lambda at: {"url": f"http://{at}", "key": ["id"], "timeout_s": 1},
    "search": lambda at: {"url": f"http://{at}", "key": ["id"], "timeout_s": 1},
}
#: Random ones, as `openssl rand -base64` makes them, and with each character that has a meaning.
WORDS = (
    "Tr0ub4dor/3zQ==", "12345/Tr0ub4dor", "Tr0ub4dor#3zQ==", "Tr0ub4dor?3zQ==", "Tr0ub4dor@3zQ",
    "Tr0ub4dor%3zQ==", "Tr0ub4dor%zzzQ", "Tr0ub4dor:3[zQ", "Tr0ub4dor]3zQ", "/Tr0ub4dor",
    "#?/@%Tr0ub4dor", "Tr0ub4dor@a/b", "Tr0ub4dor 3zQ",
)  # fmt: skip


def away(kind: str, login: str, **more: Any) -> dict[str, Any]:
    """The options for a server that is not there."""
    return {**SINKS[kind](f"{login}127.0.0.1:{free_port()}"), **more}


async def said(kind: str, options: Mapping[str, Any]) -> TailerError:
    """The error of a sink, made or looked at."""
    try:
        await looked(kind, options)
    except TailerError as e:
        return e
    raise AssertionError(kind)


async def looked(kind: str, options: Mapping[str, Any]) -> Offset | None:
    sink = make_sink(kind, options, Path())
    return await sink.look("nobody")


@pytest.mark.parametrize("word", WORDS)
@pytest.mark.parametrize("kind", SINKS)
async def test_a_password_as_it_is_in_a_url_is_never_shown(kind: str, word: str) -> None:
    error = await said(kind, away(kind, f"tailer:{word}@"))
    shown: BaseException | None = error
    while shown is not None:  # also what the log would have of its causes
        assert "Tr0ub4dor" not in hide_secrets(str(shown))
        assert "3zQ" not in hide_secrets(str(shown))
        shown = shown.__cause__
    if "/" in word or "#" in word or "?" in word:
        assert isinstance(error, ConfigError)
        assert "as %2F" in str(error)


@pytest.mark.parametrize("word", WORDS)
@pytest.mark.parametrize("kind", SINKS)
async def test_an_encoded_password_or_an_option_of_its_own_is_taken(kind: str, word: str) -> None:
    for options in (
        away(kind, f"tailer:{quote(word, '')}@"),
        away(kind, "", user="tailer", password=word),
        away(kind, "tailer@", password=word),
    ):
        error = await said(kind, options)
        assert not isinstance(error, ConfigError)
        assert "127.0.0.1" in str(error)
        assert hide_secrets(f"he said {word!s}") == "he said ***"


@pytest.mark.parametrize("kind", SINKS)
async def test_what_is_given_twice_is_refused(kind: str) -> None:
    for option in ("user", "password"):
        options = away(kind, "tailer:3zQ-3zQ@", **{option: "tailer-2"})
        match = f"option '{option}' of sink '{kind}' is also in"
        with pytest.raises(ConfigError, match=match) as e:
            make_sink(kind, options, Path())
        assert "3zQ" not in str(e.value)


async def test_servers_take_them(
    nats_server: Nats, redis_server: Redis, rabbitmq_server: RabbitMq, postgres: Postgres,
    mysql: Mysql,
) -> None:  # fmt: skip
    """From options, and percent-encoded in the URL: the first letter of each as %xx."""
    database = mysql.database()
    for kind, server, user, password in (
        ("nats", nats_server, "tailer", PASSWORD),
        ("redis", redis_server, "tailer", PASSWORD),
        ("rabbitmq", rabbitmq_server, "tailer", PASSWORD),
        ("postgres", postgres, "tester", MYSQL_PASSWORD),
        ("mysql", mysql, "tester", MYSQL_PASSWORD),
    ):
        at = f"127.0.0.1:{server.port}"
        login = f"%{ord(user[0]):x}{user[1:]}:%{ord(password[0]):x}{quote(password[1:], '')}"
        own = {"user": user, "password": password}
        for options in ({**SINKS[kind](at), **own}, SINKS[kind](f"{login}@{at}")):
            match kind:
                case "mysql":
                    options["url"] = options["url"].replace("/lake", f"/{database}")
                case "postgres":
                    options["dsn"] = options["dsn"].replace("/lake", "/postgres")
                case _:
                    options["timeout_s"] = 30
            assert await looked(kind, options) is None
