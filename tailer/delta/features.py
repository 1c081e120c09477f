"""The table features, as one closed table: which are read, and which can be ignored.

A *reader* feature that is not in the table is refused by name; an unknown *writer* feature does not
concern a reader ("Table Features", "Valid Feature Names in Table Features").
"""

from __future__ import annotations

from msgspec import Struct

from tailer.delta.actions import Metadata, Protocol
from tailer.errors import UnsupportedTable


class TableFeature(Struct, frozen=True):
    """One feature: for readers and writers or for writers only, and its first legacy versions.

    ``legacy_reader`` and ``legacy_writer``: the protocol versions that imply it without a list.
    ``meaning`` says what shows that a reader feature is read: ``golden NAME``, a table of
    tests/golden that requires it; ``test FILE``, tests for it alone; ``as NAME``, another feature;
    or ``none``, if it asks nothing of a reader. Without one a table that requires the feature is
    refused, and no sharing server learns that it is read. ``refusal``: why, and the remedy. Tables
    with a feature ``by_catalog`` are read by their names in a catalog alone.
    """

    name: str
    for_readers: bool
    legacy_reader: int | None = None
    legacy_writer: int | None = None
    meaning: str = ""
    refusal: str = "drop the feature from the table, or install a newer delta-tailer"
    by_catalog: bool = False

    @property
    def is_read(self) -> bool:
        """Return whether tables that require the feature of their readers are read."""
        return self.for_readers and bool(self.meaning)


_CATALOG_TESTS = "test catalog/test_managed.py"

FEATURES: dict[str, TableFeature] = {
    f.name: f
    for f in (
        TableFeature("columnMapping", True, 2, 5, "golden mapping_upgraded"),
        TableFeature("deletionVectors", True, meaning="golden cdf_dv"),
        TableFeature("timestampNtz", True, meaning="golden cdf_types"),
        TableFeature("typeWidening", True, meaning="golden type_widening_cdf"),
        TableFeature("typeWidening-preview", True, meaning="as typeWidening"),
        TableFeature("v2Checkpoint", True, meaning="golden v2_checkpoint_json"),
        TableFeature("vacuumProtocolCheck", True, meaning="none"),
        TableFeature("variantType", True, meaning="golden variant"),
        TableFeature("variantType-preview", True, meaning="as variantType"),
        TableFeature("variantShredding-preview", True, meaning="golden variant_shredded"),
        TableFeature("variantShredding", True, meaning="as variantShredding-preview"),
        TableFeature("catalogManaged", True, meaning=_CATALOG_TESTS, by_catalog=True),
        TableFeature("catalogOwned-preview", True, meaning=_CATALOG_TESTS, by_catalog=True),
        TableFeature("appendOnly", False, legacy_writer=2),
        TableFeature("invariants", False, legacy_writer=2),
        TableFeature("checkConstraints", False, legacy_writer=3),
        TableFeature("changeDataFeed", False, legacy_writer=4),
        TableFeature("generatedColumns", False, legacy_writer=4),
        TableFeature("identityColumns", False, legacy_writer=6),
        TableFeature("allowColumnDefaults", False),
        TableFeature("rowTracking", False),
        TableFeature("domainMetadata", False),
        TableFeature("icebergCompatV1", False),
        TableFeature("icebergCompatV2", False),
        TableFeature("icebergCompatV3", False),
        TableFeature("clustering", False),
        # The protocol's text has the plural, Spark writes the singular.
        TableFeature("inCommitTimestamp", False),
        TableFeature("inCommitTimestamps", False),
        TableFeature("checkpointProtection", False),
    )
}


def check_readable(protocol: Protocol, metadata: Metadata) -> None:
    """Refuse, by name, a table that requires more of its readers than is supported here.

    Raises :class:`UnsupportedTable` ("Requirements for Readers"; format.provider is "parquet").
    """
    version = protocol.min_reader_version
    if version not in (1, 2, 3):
        raise UnsupportedTable(
            f"the table asks for readers of protocol version {version}, and versions 1 to 3 "
            "are known",
            hint="install a newer delta-tailer",
        )
    for name in sorted(protocol.reader_features or ()) if version == 3 else ():
        feature = FEATURES.get(name)
        if feature is None:
            raise UnsupportedTable(
                f"the table requires the reader feature {name!r}, which is not known here",
                hint="install a newer delta-tailer, or drop the feature from the table",
            )
        if feature.for_readers and not feature.is_read:
            raise UnsupportedTable(
                f"the table has the feature {name!r}, which is not read here", hint=feature.refusal
            )
    if metadata.provider != "parquet":
        raise UnsupportedTable(
            f"the table's files are of format {metadata.provider!r}, and only parquet is read"
        )


def check_by_path(protocol: Protocol) -> None:
    """Refuse a table that must not be read by its path.

    Raises :class:`UnsupportedTable`.
    """
    for name in sorted(protocol.reader_features or ()):
        if name in FEATURES and FEATURES[name].by_catalog and supports_feature(protocol, name):
            raise UnsupportedTable(
                f"the table has the feature {name!r}, which can't be read by path: its newest "
                "commits are known only to its catalog",
                hint="read it by its name in the catalog, uc://catalog.schema.table, or drop the "
                "feature with ALTER TABLE ... DROP FEATURE",
            )


def supports_feature(protocol: Protocol, name: str) -> bool:
    """Return whether the protocol supports the feature, by its lists or by a legacy version."""
    feature = FEATURES[name]
    if feature.for_readers:
        if protocol.min_reader_version == 3:
            return name in (protocol.reader_features or ())
        return feature.legacy_reader == protocol.min_reader_version
    if protocol.min_writer_version == 7:
        return name in (protocol.writer_features or ())
    since = feature.legacy_writer
    return since is not None and since <= protocol.min_writer_version <= 6


def _is_true(metadata: Metadata, key: str) -> bool:
    return metadata.configuration.get(key, "").lower() == "true"


def cdf_enabled(protocol: Protocol, metadata: Metadata) -> bool:
    """Return whether writers had to write cdc files ("Writer Requirements for AddCDCFile").

    The property counts only if the protocol supports the feature.
    """
    return supports_feature(protocol, "changeDataFeed") and _is_true(
        metadata, "delta.enableChangeDataFeed"
    )


def row_tracking_enabled(protocol: Protocol, metadata: Metadata) -> bool:
    """Return whether row tracking is *enabled*, not only supported ("Row Tracking")."""
    return supports_feature(protocol, "rowTracking") and _is_true(
        metadata, "delta.enableRowTracking"
    )


def in_commit_timestamps_enabled(protocol: Protocol, metadata: Metadata) -> bool:
    """Return whether commits carry a timestamp ("In-Commit Timestamps")."""
    named = supports_feature(protocol, "inCommitTimestamp") or supports_feature(
        protocol, "inCommitTimestamps"
    )
    return named and _is_true(metadata, "delta.enableInCommitTimestamps")


def column_mapping_mode(protocol: Protocol, metadata: Metadata) -> str:
    """Return ``none``, ``name`` or ``id`` ("Reader Requirements for Column Mapping").

    Raises :class:`UnsupportedTable` for a mode that the protocol does not have.
    """
    if not supports_feature(protocol, "columnMapping"):
        return "none"
    mode = metadata.configuration.get("delta.columnMapping.mode", "none").lower()
    if mode not in ("none", "name", "id"):
        raise UnsupportedTable(f"column mapping mode {mode!r} is not known here")
    return mode
