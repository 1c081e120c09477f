"""A reader feature is read, and announced to sharing servers, only with what shows its meaning."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Iterator

import pytest

from tailer.delta.features import FEATURES
from tests.golden.test_golden import CASES, HERE
from tests.support.source import ROOT

TESTS = ROOT / "tests"
#: Features that ask nothing of a reader, and why.
NOTHING_TO_READ = {"vacuumProtocolCheck": "it is about what VACUUM checks before it removes files"}
READ = {name: feature for name, feature in FEATURES.items() if feature.is_read}


def required(case: str) -> Iterator[str]:
    """The reader features that a golden table's log requires."""
    with tarfile.open(HERE / "data" / f"{case}.tar.gz") as archive:
        for member in archive:
            if member.isfile() and member.name.endswith(".json") and "/_delta_log/" in member.name:
                file = archive.extractfile(member)
                assert file is not None
                for line in file.read().splitlines():
                    protocol = json.loads(line).get("protocol") or {}
                    yield from protocol.get("readerFeatures") or ()


@pytest.mark.parametrize("name", READ)
def test_a_feature_that_is_read_has_what_shows_its_meaning(name: str) -> None:
    kind, _, subject = READ[name].meaning.partition(" ")
    match kind:
        case "golden":
            assert subject in CASES, "no golden test reads the table"
            assert name in set(required(subject)), "the table does not require the feature"
        case "test":
            assert f'"{name}"' in (TESTS / subject).read_text(encoding="utf-8")
        case "as":
            assert READ[subject].meaning.startswith("golden ")
            assert name.removesuffix("-preview") == subject.removesuffix("-preview")
        case _:
            assert (kind, name in NOTHING_TO_READ) == ("none", True)


def test_writer_features_have_no_meaning_to_a_reader() -> None:
    assert [name for name, f in FEATURES.items() if f.meaning and not f.for_readers] == []
