"""Helm, which Go builds."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from tests.support.components import GO_QUICKLY, Component, run_maker

_VERSION = "v3.16.4"


def _build(home: Path) -> None:
    package = f"helm.sh/helm/v3/cmd/helm@{_VERSION}"
    command: list[str | Path] = ["go", "install", "-trimpath", GO_QUICKLY, package]
    run_maker(command, env={**os.environ, "GOBIN": str(home), "CGO_ENABLED": "0"})


HELM = Component(
    "helm",
    "Helm",
    home=lambda: f"helm-{_VERSION}",
    make=_build,
    missing=lambda: (
        "" if shutil.which("helm") or shutil.which("go") else "Helm, and Go to build it"
    ),
)


def helm_program() -> Path:
    """Helm of the components' cache."""
    return HELM.path() / "helm"
