"""``_last_checkpoint``: its canonical form, its checksum, and what makes it worthless."""

from __future__ import annotations

import json
from hashlib import md5
from typing import Any

import pytest

from tailer.delta.last_checkpoint import LastCheckpoint, canonical_json, parse_last_checkpoint
from tailer.errors import CorruptLog
from tests.support.feeds import refusal

# The protocol's own example ("JSON checksum").
EXAMPLE = (
    """{"k0":"'v 0'", "checksum": "adsaskfljadfkjadfkj", "k1":{"k2": 2, "k3": ["v3", [1, 2], """
    """{"k4": "v4", "k5": ["v5", "v6", "v7"]}]}}"""
)
CANONICAL = (
    '"k0"="%27v%200%27","k1"+"k2"=2,"k1"+"k3"+0="v3","k1"+"k3"+1+0=1,"k1"+"k3"+1+1=2,'
    '"k1"+"k3"+2+"k4"="v4","k1"+"k3"+2+"k5"+0="v5","k1"+"k3"+2+"k5"+1="v6","k1"+"k3"+2+"k5"+2="v7"'
)


def hint(text: str, canonical: str) -> bytes:
    """A document's text with the checksum of a canonical form as its first member."""
    checksum = md5(canonical.encode(), usedforsecurity=False).hexdigest()
    return text.replace("{", f'{{"checksum": "{checksum}", ', 1).encode()


def test_the_protocol_s_example_has_the_protocol_s_form_and_checksum() -> None:
    found = canonical_json(json.loads(EXAMPLE))
    assert found == CANONICAL
    digest = md5(found.encode(), usedforsecurity=False).hexdigest()
    assert digest == "6a92d155a59bf2eecbd4b4ec7fd1f875"


@pytest.mark.parametrize(
    ("document", "canonical"),
    [
        ({"a": 10, "b": {"y": None, "x": "https://delta.io"}},
         '"a"=10,"b"+"x"="https%3A%2F%2Fdelta.io","b"+"y"=null'),
        ([None, "hi ho", 2.71], '0=null,1="hi%20ho",2=2.71'),
        ({"b": True, "a": False}, '"a"=false,"b"=true'),
        ({"é~-._": "\U0001f600"}, '"%C3%A9~-._"="%F0%9F%98%80"'),
        ({"k1": "v1", "checksum": "x", "k3": {"checksum": 23}}, '"k1"="v1","k3"+"checksum"=23'),
        ({"none": {}, "nothing": []}, ""),
    ],
)  # fmt: skip
def test_documents_have_one_canonical_form(document: Any, canonical: str) -> None:
    assert canonical_json(document) == canonical


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ('{"version": 8, "size": 43}', '"size"=43,"version"=8'),
        ('{"size":43.0,"version":8,"tags":{"a":1e2}}', '"size"=43.0,"tags"+"a"=1e2,"version"=8'),
        ('{"version":8,"big":123456789012345678901234567890}',
         '"big"=123456789012345678901234567890,"version"=8'),
    ],
)  # fmt: skip
def test_numbers_count_as_they_are_spelled(text: str, canonical: str) -> None:
    assert parse_last_checkpoint(hint(text, canonical)) == LastCheckpoint(8)


def test_one_without_a_checksum_is_taken_as_it_is() -> None:
    assert parse_last_checkpoint(b'{"version": 3, "parts": 2}') == LastCheckpoint(3, 2)
    assert parse_last_checkpoint(b'{"version": 0, "checksum": null}') == LastCheckpoint(0)


@pytest.mark.parametrize("canonical", ['"version"=9', '"version"=8,"x"=1', ""])
def test_one_that_does_not_fit_its_checksum_is_refused(canonical: str) -> None:
    data = hint('{"version": 8}', canonical)
    assert "does not fit its checksum" in refusal(lambda: parse_last_checkpoint(data), CorruptLog)


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "8", "null", '{"version": "8"}', '{"version": -1}', '{"version": 8.0}', "{}",
     '{"version": true}', '{"version": 9223372036854775808}', '{"version": 1' + "0" * 5000 + "}",
     '{"version": 1, "version": 2}', '{"version": 1, "a": {"b": 1, "b": 1}}', '{"version": NaN}',
     '{"version": 1, "checksum": 5}', '{"version": 1, "checksum": "", "a": "\\ud800"}',
     '{"version": 1, "a": ' + "[" * 100_000 + "]" * 100_000 + "}", "\x00", "\ufeff{"],
    ids=lambda text: text[:20],
)  # fmt: skip
def test_what_can_t_be_trusted_is_refused(text: str) -> None:
    refusal(lambda: parse_last_checkpoint(text.encode()), CorruptLog)


def test_bytes_that_are_no_text_are_refused() -> None:
    refusal(lambda: parse_last_checkpoint(b"\xff\xfe\xfd"), CorruptLog)
