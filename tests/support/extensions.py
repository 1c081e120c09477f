"""Extensions that are compiled elsewhere than into the package."""

from __future__ import annotations

import importlib.util
from typing import Any


def extension(name: str, file: str) -> Any:
    """Load a compiled module of that name from a file."""
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
