"""Which fields of an add are read of a checkpoint. Fewer columns cost less."""

from __future__ import annotations

#: The fields of an add, except its statistics, tags and parsed partition values, which take most of
#: the bytes.
FILES = (
    "path",
    "partitionValues",
    "size",
    "dataChange",
    "deletionVector",
    "baseRowId",
    "defaultRowCommitVersion",
)
#: The fields that identify a logical file, and those that every add has.
KEYS = ("path", "size", "dataChange", "deletionVector")
#: The fields of :data:`FILES`, with statistics.
WITH_STATISTICS = (*FILES, "stats", "stats_parsed.numRecords")
#: The fields of :data:`WITH_STATISTICS`, with what orders the files of Spark's initial snapshot.
WITH_TIMES = (*WITH_STATISTICS, "modificationTime")
#: All fields that a commit would have.
AS_LOGGED = (*WITH_TIMES, "tags", "clusteringProvider")
