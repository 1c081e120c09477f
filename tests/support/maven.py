"""Maven's description of what a component consists of."""

from __future__ import annotations

from collections.abc import Iterable


def pom(name: str, artifacts: Iterable[str]) -> str:
    """The project file of a component of these artifacts, each as `group:artifact:version`, and
    `:classifier` where it is not the main one of them."""
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
