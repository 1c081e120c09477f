"""What components consist of that Maven brings."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.support.components import run_maven


def copy_jars(folder: Path, artifacts: Iterable[str], *options: str) -> None:
    """Copy artifacts with all that they need into a folder. Each is `group:artifact:version`, and
    `:classifier` where it is not the main one of them."""
    copy = ("dependency:copy-dependencies", "-DincludeScope=runtime")
    with TemporaryDirectory() as made:
        project = Path(made, "pom.xml")
        project.write_text(_build_project(folder.name, artifacts))
        run_maven("-f", str(project), *copy, *options, f"-DoutputDirectory={folder}")


def copy_jar(folder: Path, artifact: str) -> None:
    """Copy one artifact alone."""
    run_maven("dependency:copy", f"-Dartifact={artifact}", f"-DoutputDirectory={folder}")


def _build_project(name: str, artifacts: Iterable[str]) -> str:
    """Return Maven's description of a project that needs these artifacts."""
    keys = ("groupId", "artifactId", "version", "classifier")
    wanted = (
        "".join(f"<{k}>{v}</{k}>" for k, v in zip(keys, artifact.split(":"), strict=False))
        for artifact in artifacts
    )
    dependencies = "".join(f"<dependency>{each}</dependency>" for each in wanted)
    return f"""<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>local</groupId><artifactId>{name}</artifactId><version>1</version>
  <packaging>pom</packaging>
  <dependencies>{dependencies}</dependencies>
</project>
"""
