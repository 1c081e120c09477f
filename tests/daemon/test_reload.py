"""What a new configuration changes of the feeds that run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from tailer.config.feeds import FeedConfig, SinkConfig
from tailer.daemon.reload import find_feed_changes
from tailer.feed.options import FeedOptions


def feed(name: str, table: str) -> FeedConfig:
    return FeedConfig(name, table, "latest", FeedOptions(), SinkConfig("jsonl", {}))


A, B, P = feed("a", "/data/a"), feed("b", "/data/b"), feed("p", "/data/p/*")
FOUND = {"p/x": replace(A, name="p/x"), "p/y": replace(A, name="p/y")}


@pytest.mark.parametrize(
    ("running", "old", "new", "ended", "started"),
    [
        ({"a": A}, {"a": A}, {"a": A}, [], []),
        ({"a": A}, {"a": A}, {"a": A, "b": B}, [], ["b"]),
        ({"a": A, "b": B}, {"a": A, "b": B}, {"b": B}, ["a"], []),
        ({"a": A}, {"a": A}, {"a": replace(A, start=None)}, ["a"], ["a"]),
        ({}, {"a": A}, {"a": A}, [], ["a"]),
        (FOUND, {"p": P}, {"p": P}, [], []),
        (FOUND, {"p": P}, {}, ["p/x", "p/y"], []),
        (FOUND, {"p": P}, {"p": replace(P, start=None)}, ["p/x", "p/y"], []),
        (FOUND, {"p": P}, {"p": replace(P, table="/data/p")}, ["p/x", "p/y"], ["p"]),
        ({"p": A}, {"p": A}, {"p": P}, ["p"], []),
    ],
)
def test_what_is_equal_is_left_alone(
    running: Mapping[str, FeedConfig],
    old: Mapping[str, FeedConfig],
    new: Mapping[str, FeedConfig],
    ended: list[str],
    started: list[str],
) -> None:
    changes = find_feed_changes(running, old, new)
    assert [*changes.ended] == ended
    assert [*changes.started] == started


def test_each_feed_is_named_once() -> None:
    changes = find_feed_changes({**FOUND, "a": A}, {"p": P, "a": A}, {"p": replace(P, start=None)})
    assert changes.summarize(["p/x", "p/z"]) == {
        "started": ["p/z"],
        "stopped": ["p/y", "a"],
        "restarted": ["p/x"],
    }
