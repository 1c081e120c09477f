"""JSON as the log may have it: any order of keys, escapes, blanks, keys that nobody knows."""

from __future__ import annotations

import json
import random
from typing import Any

#: What a history may do to the lines of its commits. Each can be switched off by name.
ODD = ("order", "escapes", "blanks", "unknown", "floats", "nulls", "crlf", "no_end")

#: Numbers that no reader needs: some writers have them as 5.0. Elsewhere the text says Long.
_TIMES = {"modificationTime", "deletionTimestamp", "createdTime"}
_OPTIONAL = {
    "add": ("deletionVector", "tags", "stats", "baseRowId", "clusteringProvider"),
    "remove": ("deletionVector", "tags", "stats", "partitionValues", "size", "deletionTimestamp"),
    "cdc": ("tags",),
    "metaData": ("name", "description", "createdTime"),
    "txn": ("lastUpdated",),
    "protocol": ("readerFeatures", "writerFeatures"),
}
_UNKNOWN: list[Any] = [
    None, True, -1.5e-7, "\u2028", [], {}, {"path": "x", "deep": [{"a": [None]}]}, [1, "add"],
    10**30, "\ud800",
]  # fmt: skip
#: Maps of texts, and the like: whatever stands there counts.
_OPEN = {"partitionValues", "configuration", "tags", "options", "commitInfo"}


def line(action: dict[str, Any], rng: random.Random, odd: frozenset[str]) -> str:
    """One action as a line of the log, without its end."""
    ((kind, fields),) = action.items()
    fields = dict(fields)
    if "nulls" in odd:
        fields |= {name: None for name in _OPTIONAL.get(kind, ()) if name not in fields}
    if "unknown" in odd and kind not in _OPEN:
        fields[rng.choice(["zz", "Path", "data_change", "ad\u0064"])] = rng.choice(_UNKNOWN)
    outer: dict[str, Any] = {kind: fields}
    if "nulls" in odd and rng.random() < 0.3:
        outer["remove" if kind != "remove" else "add"] = None
    return _spelled(outer, rng, odd, "")


def _spelled(found: Any, rng: random.Random, odd: frozenset[str], key: str) -> str:
    def gap() -> str:
        return rng.choice(["", " ", "\t", "  "]) if "blanks" in odd else ""

    if isinstance(found, dict):
        items = list(found.items())
        if "order" in odd:
            rng.shuffle(items)
        parts = [
            f"{gap()}{_text(k, rng, odd)}{gap()}:{gap()}{_spelled(v, rng, odd, k)}{gap()}"
            for k, v in items
        ]
        return "{" + ",".join(parts) + "}"
    if isinstance(found, list):
        inner = (f"{gap()}{_spelled(v, rng, odd, '')}{gap()}" for v in found)
        return "[" + ",".join(inner) + "]"
    if isinstance(found, str):
        return _text(found, rng, odd)
    if "floats" in odd and key in _TIMES and isinstance(found, int):
        return rng.choice([f"{found}.0", f"{found}e0", str(found)])
    return json.dumps(found)


def _text(text: str, rng: random.Random, odd: frozenset[str]) -> str:
    spelled = json.dumps(
        text, ensure_ascii="\ud800" in text or "escapes" not in odd or rng.random() < 0.5
    )
    if "escapes" in odd:
        spelled = spelled.replace("/", rng.choice(["/", "\\/", "\\u002f"]))
        if text and text[0].isalpha() and text[0].isascii() and rng.random() < 0.3:
            spelled = f'"\\u{ord(text[0]):04X}{spelled[2:]}'
    return spelled
