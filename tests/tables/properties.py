"""The table properties and features of a :class:`~tests.tables.writer.TableWriter`, on and off.

Features are never dropped: a property may be switched off, and the protocol still names it.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from tests.tables.columns import SchemaChanges
from tests.tables.model import CDF_FEATURES, TableVersion
from tests.tables.transaction import FIRST_MS, STEP_MS, Draft

_CDF = "delta.enableChangeDataFeed"
_DVS = "delta.enableDeletionVectors"
_TRACKING = "delta.enableRowTracking"
_ICT = "delta.enableInCommitTimestamps"
_MODE = "delta.columnMapping.mode"
_MAX_ID = "delta.columnMapping.maxColumnId"


class TableProperties(SchemaChanges):
    """The part of a writer that switches features. Each switch is a commit of its own, also where
    nothing changes by it."""

    present: TableVersion
    versions: dict[int, TableVersion]
    rng: random.Random
    _draft: Callable[..., Draft]
    _commit: Callable[[Draft], TableVersion]

    def set_cdf(self, *, on: bool) -> TableVersion:
        """Switch the change data feed."""
        return self._set(**self._switched(cdf=on))

    def set_deletion_vectors(self, *, on: bool) -> TableVersion:
        """Switch deletion vectors for later deletes; those that are there stay."""
        return self._set(**self._switched(more={_DVS: _text(on)}))

    def set_column_mapping(self) -> TableVersion:
        """Turn column mapping by name on; the columns keep their names as physical names."""
        if self.present.mapping != "none":
            return self._set()
        columns = tuple(self._mapped(c, fresh=False) for c in self.present.columns)
        return self._set(columns=columns, **self._switched(mapping="name", columns=columns))

    def set_in_commit_timestamps(self) -> TableVersion:
        """Turn in-commit timestamps on, from this commit on."""
        if self.present.on(_ICT):
            return self._set()
        version = self.present.version + 1
        more = {
            _ICT: "true",
            "delta.inCommitTimestampEnablementVersion": str(version),
            "delta.inCommitTimestampEnablementTimestamp": str(FIRST_MS + STEP_MS * version),
        }
        return self._set(**self._switched(more=more))

    def set_row_tracking(self, *, on: bool) -> TableVersion:
        """Switch row tracking. On a table that never had it, one commit makes it supported, one
        or two give base row ids to the files that are there, and one enables it."""
        if on and "rowTracking" not in self.present.features:
            self._set(features=self.present.features | {"rowTracking", "domainMetadata"})
        if on:
            self._backfill()
        return self._set(**self._switched(more={_TRACKING: _text(on)}))

    def _backfill(self) -> None:
        """Base row ids for the files that have none ("Row Tracking", writers)."""
        files = [f for f in self.present.files.values() if f.base_row_id is None]
        half = self.rng.randrange(len(files) + 1)
        for part in (files[:half], files[half:]):
            if part:
                still = {file.path for file in part}
                self._commit(self._draft("ROW TRACKING BACKFILL", come=part, still=still))

    def _set(self, **fields: Any) -> TableVersion:
        tracking = self.present.on(_TRACKING)
        draft = self._draft("SET TBLPROPERTIES", preserved=tracking, **fields)
        draft.columns = draft.columns or self.present.columns
        return self._commit(draft)

    def _switched(
        self,
        *,
        cdf: bool | None = None,
        mapping: str | None = None,
        more: dict[str, str] | None = None,
        columns: Any = None,
    ) -> dict[str, Any]:
        """Properties and features of the table with these switches: the fields of a draft."""
        properties = {**self.present.properties, **(more or {})}
        features = self.present.features
        if cdf is not None:
            properties[_CDF] = _text(cdf)
            features |= CDF_FEATURES if cdf else features
        if mapping not in (None, "none"):
            properties[_MODE] = str(mapping)
            properties |= self._max_id(columns or self.present.columns)
            features |= CDF_FEATURES | {"columnMapping"}
        if properties.get(_DVS) == "true":
            features |= {"deletionVectors"}
        if properties.get(_ICT) == "true":
            features |= {"inCommitTimestamp"}
        if properties.get("delta.checkpointPolicy") == "v2":
            features |= {"v2Checkpoint"}
        if properties.get(_TRACKING) == "true":
            features |= {"rowTracking", "domainMetadata"}
            for kind in ("Id", "CommitVersion"):
                key = f"delta.rowTracking.materializedRow{kind}ColumnName"
                properties.setdefault(key, f"_row-{kind.lower()}-col-{self.unique()}")
        return {"properties": properties, "features": features}

    def _restored_properties(self, target: TableVersion) -> dict[str, str]:
        """The properties of an earlier version, less what can't go back: row tracking, in-commit
        timestamps, and the highest column id."""
        kept = ("delta.rowTracking.", _TRACKING, "delta.inCommitTimestamp", _ICT)
        properties = {k: v for k, v in target.properties.items() if not k.startswith(kept)}
        now = self.present.properties
        properties |= {k: v for k, v in now.items() if k.startswith(kept)}
        if _MAX_ID in properties and _MAX_ID in now:
            properties[_MAX_ID] = now[_MAX_ID]
        return properties


def _text(on: bool) -> str:  # noqa: FBT001 - a property's two values
    return "true" if on else "false"
