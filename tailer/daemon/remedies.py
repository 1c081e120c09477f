"""What to do about a feed's error: one sentence for the operator, and the order that mends it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from tailer.errors import TailerError

Order = Literal["start", "resume", "reload", "skip"]


@dataclass(frozen=True, slots=True)
class Remedy:
    """``text`` is the advice. ``order`` is given after it was followed; None: none is needed.

    ``version`` is the one that the error names, which an operator may decide to skip.
    """

    text: str
    order: Order | None = None
    version: int | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the fields by name."""
        return asdict(self)


_REPORT = "This is a bug. Report it with the traceback in the log and `tailer version --verbose`."
#: By the family of the error, which says who must act (:mod:`tailer.errors`).
_BY_FAMILY: dict[str, Remedy] = {
    "transient": Remedy("The feed retries by itself. Check the server that the error names."),
    "paused": Remedy("Check that consumers can take the new schema, then accept it.", "resume"),
    "schema": Remedy("Check that consumers can take the new schema, then accept it.", "resume"),
    "table": Remedy("Repair the table as the error says, then start the feed.", "start"),
    "unsupported": Remedy(
        "Remove the unsupported feature from the table, or upgrade delta-tailer, then start the "
        "feed.", "start",
    ),
    "corrupt": Remedy(
        "Restore the file that the error names, then start the feed. If it is lost for good, skip "
        "the version.", "start",
    ),
    "data_loss": Remedy(
        "Restore what is missing, then start the feed. If it is lost for good, set `on_data_loss` "
        "or skip the version, and read the table again with a re-snapshot.", "start",
    ),
    "replaced": Remedy(
        "If the table was replaced on purpose, run `tailer offsets reset CONFIG FEED`, then start "
        "the feed.", "start",
    ),
    "offset": Remedy("Correct the offset with `tailer offsets`, then start the feed.", "start"),
    "sink": Remedy("Correct the target as the error says, then start the feed.", "start"),
    "config": Remedy("Correct the configuration, then reload it.", "reload"),
    "internal": Remedy(_REPORT, "start"),
}  # fmt: skip


def find_remedy(error: TailerError | None) -> Remedy | None:
    """Return what to do about an error; None without one."""
    if error is None:
        return None
    advice = _BY_FAMILY.get(error.family, _BY_FAMILY["internal"])
    version = getattr(error, "version", None)
    return Remedy(advice.text, advice.order, version if isinstance(version, int) else None)
