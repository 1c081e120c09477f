"""Dataclasses whose fields declare settings."""

from __future__ import annotations

from dataclasses import field, fields
from typing import Any

from tailer.settings import REQUIRED, Setting


def declared(setting: Setting) -> Any:
    """Return a dataclass field with the setting's default; secrets are not in its ``repr``."""
    default: dict[str, Any] = {"default": setting.default}
    if setting.default is REQUIRED:
        default = {}
    elif isinstance(setting.default, dict):
        default = {"default_factory": setting.default.copy}
    return field(**default, repr=not setting.secret, metadata={"setting": setting})


def settings_of(options: type) -> dict[str, Setting]:
    """Return the settings that a dataclass declares, by the names of its fields."""
    return {f.name: f.metadata["setting"] for f in fields(options) if "setting" in f.metadata}
