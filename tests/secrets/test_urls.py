"""URLs of servers: parsed in one place, and never shown by an error."""

from __future__ import annotations

from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailer.secrets.urls import Url, UrlError, parse_url

SCHEMES = ("amqp", "amqps")
PASSWORDS = st.text(st.characters(codec="utf-8"), min_size=1)
#: What ends a name, or begins an escape, where it stands as it is.
SPECIAL = st.text("aB3/#?@%:[]=+", min_size=1)


@given(PASSWORDS, PASSWORDS)
def test_a_user_and_a_password_that_are_encoded_are_what_they_were(user: str, word: str) -> None:
    text = f"amqp://{quote(user, '')}:{quote(word, '')}@example.org:5673/lake?heartbeat=5"
    url = parse_url(text, SCHEMES)
    assert (url.user, url.password) == (user, word)
    assert (url.host, url.port, url.path, url.query) == (
        "example.org",
        5673,
        "/lake",
        "heartbeat=5",
    )
    assert url.host_port(5672) == "example.org:5673"
    assert parse_url(url.to_text(), SCHEMES) == url


@given(SPECIAL)
def test_a_password_as_it_is_is_read_right_or_refused(word: str) -> None:
    secret = f"{word}secret{word}"
    text = f"amqp://me:{secret}@example.org/lake"
    refused = None
    try:
        url = parse_url(text, SCHEMES)
    except UrlError as e:
        refused = str(e)
    if refused is None:
        assert url.host == "example.org"
        assert url.password == secret or "%" in secret
    else:
        assert set(secret) & set("/#?%")
        assert "secret" not in refused
        assert "as %2F" in refused or "is not UTF-8" in refused


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("http://me:secret@example.org", "does not begin with amqp:// or amqps://"),
        ("me:secret@example.org", "does not begin with"),
        ("amqp://", "names no host"),
        ("amqp://me:secret@/lake", "names no host"),
        ("amqp://example.org:secret", "its port is not a number"),
        ("amqp://example.org:0", "its port is not a number"),
        ("amqp://example.org:70000", "its port is not a number"),
        ("amqp://a:b:c", "its host is not a name"),
        ("amqp://[::1", "its host is not a name"),
        ("amqp://me:secret\n@example.org", "a line break"),
        ("amqp://me:%ff@example.org", "is not UTF-8"),
        ("amqp://me:1/secret@example.org", "as %2F"),
        ("amqp://me:%secret@example.org", "% as %25"),
    ],
)
def test_what_is_no_url_is_said_without_it(text: str, said: str) -> None:
    with pytest.raises(UrlError, match=said) as e:
        parse_url(text, SCHEMES)
    assert "secret" not in str(e.value)
    assert e.value.__cause__ is None


def test_the_parts_of_urls() -> None:
    assert parse_url("AMQP://[::1]:5672", SCHEMES) == Url("amqp", "::1", 5672)
    assert parse_url("amqp://[::1]", SCHEMES).host_port(5672) == "[::1]:5672"
    assert parse_url("amqp://token@h", SCHEMES) == Url("amqp", "h", user="token")
    assert parse_url("amqp://:word@h", SCHEMES) == Url("amqp", "h", user="", password="word")
    assert parse_url("amqp:///path", SCHEMES, needs_host=False) == Url("amqp", "", path="/path")
    with pytest.raises(UrlError, match="a user in it"):
        parse_url("amqp://me@h", SCHEMES, login=False)
    assert parse_url("amqp://h/@me", SCHEMES, login=False).path == "/@me"
    assert "word" not in repr(parse_url("amqp://:word@h/word?word", SCHEMES))


def test_what_is_secret_in_a_query_is_known() -> None:
    from tailer.secrets import hide_secrets

    parse_url(f"amqp://h/?token={quote_plus('se cret/1')}&heartbeat=500000", SCHEMES)
    assert hide_secrets("se cret/1, 500000") == "***, 500000"
