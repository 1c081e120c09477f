"""The option that names a sink's own columns, the same for every sink that adds some."""

from __future__ import annotations

from tailer.settings import Setting
from tailer.sink import OWN_PREFIX, own_prefix

OWN_PREFIX_SETTING = Setting(
    "text", OWN_PREFIX, "Prefix of the columns that the sink adds, such as `_event_id`. Choose "
    "another one if the table has a column of such a name.",
    form="up to 40 letters, digits and `_`, not beginning with a digit", parse=own_prefix,
    advanced=True,
)  # fmt: skip


def renamed(name: str, prefix: str) -> str:
    """Return one of our names, which begins with an underscore, with the prefix in its place."""
    return prefix + name.removeprefix(OWN_PREFIX)
