"""What the protocol asks of readers: known, unknown, and switched on by a property."""

from __future__ import annotations

import pytest

from tailer.delta.actions import Metadata, Protocol
from tailer.delta.features import (
    FEATURES,
    TableFeature,
    cdf_enabled,
    check_by_path,
    check_readable,
    column_mapping_mode,
    in_commit_timestamps_enabled,
    row_tracking_enabled,
    supports_feature,
)
from tailer.errors import UnsupportedTable
from tests.support.feeds import metadata, refusal

CDF = metadata(delta__enableChangeDataFeed="true")
MAPPED = metadata(delta__columnMapping__mode="name")


def listed(*readers: str, writers: tuple[str, ...] = ()) -> Protocol:
    return Protocol(3, 7, frozenset(readers), frozenset({*readers, *writers}))


@pytest.mark.parametrize(
    "name", sorted(n for n, f in FEATURES.items() if f.is_read or not f.for_readers)
)
def test_every_feature_of_the_table_is_read(name: str) -> None:
    feature = FEATURES[name]
    protocol = listed(name) if feature.for_readers else listed(writers=(name,))
    check_readable(protocol, metadata())
    assert supports_feature(protocol, name)


@pytest.mark.parametrize("name", ["somethingNew", "adaptiveMetadata", "DELETIONVECTORS", ""])
def test_an_unknown_reader_feature_is_refused_by_name(name: str) -> None:
    message = refusal(
        lambda: check_readable(listed("deletionVectors", name), metadata()), UnsupportedTable
    )
    assert repr(name) in message


def test_an_unknown_writer_feature_is_no_readers_business() -> None:
    check_readable(listed("deletionVectors", writers=("somethingNew", "collations")), metadata())
    check_readable(Protocol(1, 7, None, frozenset({"somethingNew"})), metadata())


@pytest.mark.parametrize("name", ["catalogManaged", "catalogOwned-preview"])
def test_a_table_that_its_catalog_manages_is_not_read_by_path(name: str) -> None:
    message = refusal(lambda: check_by_path(listed(name)), UnsupportedTable)
    assert repr(name) in message
    assert "uc://catalog.schema.table" in message
    assert "DROP FEATURE" in message


def test_a_feature_without_a_meaning_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(FEATURES, "somethingNew", TableFeature("somethingNew", True))
    message = refusal(lambda: check_readable(listed("somethingNew"), metadata()), UnsupportedTable)
    assert "'somethingNew'" in message
    assert "install a newer delta-tailer" in message


@pytest.mark.parametrize("version", [0, 4, 99, -1])
def test_an_unknown_reader_version_is_refused(version: int) -> None:
    message = refusal(lambda: check_readable(Protocol(version, 7), metadata()), UnsupportedTable)
    assert f"version {version}" in message


@pytest.mark.parametrize("version", [8, 99])
def test_a_newer_writer_version_is_no_readers_business(version: int) -> None:
    check_readable(Protocol(1, version), metadata())


def test_a_feature_list_below_reader_version_3_counts_for_nothing() -> None:
    check_readable(Protocol(2, 5, frozenset({"somethingNew"})), metadata())


def test_files_of_another_format_are_refused() -> None:
    orc = Metadata("1", "{}", (), {}, format={"provider": "orc"})
    assert "'orc'" in refusal(lambda: check_readable(Protocol(1, 2), orc), UnsupportedTable)


@pytest.mark.parametrize(
    ("protocol", "counts"),
    [
        (Protocol(1, 2), False),
        (Protocol(1, 3), False),
        (Protocol(1, 4), True),
        (Protocol(2, 5), True),
        (Protocol(1, 6), True),
        (listed(), False),
        (listed(writers=("changeDataFeed",)), True),
        (Protocol(1, 7, None, frozenset({"changeDataFeed"})), True),
        (Protocol(1, 4, None, frozenset()), True),
        (Protocol(1, 8), False),
    ],
)
def test_the_cdf_property_counts_where_the_protocol_supports_it(
    protocol: Protocol, *, counts: bool
) -> None:
    assert cdf_enabled(protocol, CDF) is counts
    assert not cdf_enabled(protocol, metadata())


@pytest.mark.parametrize(("value", "on"), [("TRUE", True), ("false", False), ("1", False)])
def test_a_property_is_on_when_it_says_true(value: str, *, on: bool) -> None:
    assert cdf_enabled(Protocol(1, 4), metadata(delta__enableChangeDataFeed=value)) is on


@pytest.mark.parametrize(
    ("protocol", "mode"),
    [
        (Protocol(1, 4), "none"),
        (Protocol(1, 7, None, frozenset({"columnMapping"})), "none"),
        (Protocol(2, 5), "name"),
        (listed(), "none"),
        (listed("columnMapping"), "name"),
    ],
)
def test_the_mapping_mode_counts_where_readers_must_know_it(protocol: Protocol, mode: str) -> None:
    assert column_mapping_mode(protocol, MAPPED) == mode
    assert column_mapping_mode(protocol, metadata()) == "none"


def test_an_unknown_mapping_mode_is_refused() -> None:
    odd = metadata(delta__columnMapping__mode="hash")
    assert "'hash'" in refusal(lambda: column_mapping_mode(Protocol(2, 5), odd), UnsupportedTable)


def test_row_tracking_must_be_enabled_and_not_only_supported() -> None:
    on = metadata(delta__enableRowTracking="true")
    supported = listed(writers=("rowTracking",))
    assert row_tracking_enabled(supported, on)
    assert not row_tracking_enabled(supported, metadata())
    assert not row_tracking_enabled(listed(), on)


@pytest.mark.parametrize("name", ["inCommitTimestamp", "inCommitTimestamps"])
def test_in_commit_timestamps_go_by_either_of_their_names(name: str) -> None:
    on = metadata(delta__enableInCommitTimestamps="true")
    assert in_commit_timestamps_enabled(listed(writers=(name,)), on)
    assert not in_commit_timestamps_enabled(listed(writers=(name,)), metadata())
    assert not in_commit_timestamps_enabled(Protocol(1, 6), on)
