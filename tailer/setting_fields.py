"""Dataclasses whose fields declare settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, fields
from typing import Any, Self

from tailer.settings import REQUIRED, Setting, SettingTable


def declared(setting: Setting) -> Any:
    """Return a dataclass field with the setting's default; secrets are not in its ``repr``."""
    default: dict[str, Any] = {"default": setting.default}
    if setting.default is REQUIRED:
        default = {}
    elif isinstance(setting.default, dict):
        default = {"default_factory": setting.default.copy}
    return field(**default, repr=not setting.secret, metadata={"setting": setting})


class DeclaredOptions:
    """A dataclass of options, each a field of :func:`declared`."""

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> Self:
        """Parse the options of a mapping; values may be text (as the command line gives them).

        Raises :class:`ConfigError`, naming the key, for one that is unknown or of another type.
        """
        return cls(**cls.setting_table().take(options))

    @classmethod
    def setting_table(cls) -> SettingTable:
        """Return the settings, and the names that they have elsewhere."""
        raise NotImplementedError


def settings_of(options: type) -> dict[str, Setting]:
    """Return the settings that a dataclass declares, by the names of its fields."""
    return {f.name: f.metadata["setting"] for f in fields(options) if "setting" in f.metadata}
