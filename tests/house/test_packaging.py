"""What is shipped: the wheel is built and looked into, and its programs start from it alone."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
import zipfile
from importlib.metadata import Distribution, distributions
from pathlib import Path

import pytest

from tests.support.components import require
from tests.support.source import ROOT

# Each wheel would build it; another clone that shares the cache has it built once more.
pytestmark = [pytest.mark.needs("native"), pytest.mark.timeout(1500)]

PACKAGES = ("tailer", "sinks")
LOAD = """
import importlib.metadata, sinks, tailer
for point in importlib.metadata.distribution("delta-tailer").entry_points:
    point.load()
print(sinks.__file__, tailer.__file__)
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of the tree as it is, built by what is installed."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder)]
    built = subprocess.run([*command, str(ROOT)], capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stdout + built.stderr
    (path,) = folder.iterdir()
    return path


@pytest.fixture(scope="module")
def site(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel's content, as pip lays it out."""
    folder = tmp_path_factory.mktemp("site")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


@pytest.fixture(scope="module")
def shipped(site: Path) -> Distribution:
    """The wheel's own metadata."""
    (found,) = distributions(path=[str(site)])
    return found


def run_from(site: Path, *arguments: str) -> str:
    """What Python prints with the wheel's content before everything else that is installed."""
    done = subprocess.run(
        [sys.executable, *arguments],
        env=os.environ | {"PYTHONPATH": str(site)},
        cwd=site.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_wheel_holds_two_packages_and_nothing_else(site: Path, shipped: Distribution) -> None:
    metadata = f"delta_tailer-{shipped.version}.dist-info"
    assert {path.name for path in site.iterdir()} == {*PACKAGES, metadata}


@pytest.mark.parametrize("package", PACKAGES)
def test_the_wheel_holds_every_file_of_its_packages(site: Path, package: str) -> None:
    def files(root: Path) -> set[str]:
        paths = (path for path in (root / package).rglob("*") if path.is_file())
        return {str(path.relative_to(root)) for path in paths if path.parent.name != "__pycache__"}

    assert files(site) == files(ROOT)
    assert f"{package}/py.typed" in files(site)


@pytest.mark.parametrize(("pure", "tag"), [("0", "cp311-abi3-"), ("1", "py3-none-any")])
@pytest.mark.slow
def test_a_wheel_has_the_compiled_part_where_there_is_a_compiler(
    pure: str, tag: str, tmp_path: Path
) -> None:
    require("a C compiler", shutil.which("cc") is not None)
    require("cargo", shutil.which("cargo") is not None)
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", "."]
    environment = os.environ | {"TAILER_PURE": pure}
    subprocess.run([*command, str(ROOT)], cwd=tmp_path, env=environment, check=True)
    (path,) = tmp_path.iterdir()
    assert tag in path.name
    with zipfile.ZipFile(path) as archive:
        compiled = [name for name in archive.namelist() if name.endswith(".so")]
    all_ = [f"tailer/native/_{name}.abi3.so" for name in ("parquet", "rowbytes")]
    assert sorted(compiled) == ([] if pure == "1" else all_)


@pytest.mark.slow
def test_a_compiler_that_fails_leaves_a_pure_wheel(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    for package in PACKAGES:
        ignored = shutil.ignore_patterns("*.so", "__pycache__")
        shutil.copytree(ROOT / package, tree / package, ignore=ignored)
    for name in ("pyproject.toml", "hatch_build.py", "README.md", "LICENSE", "CHANGELOG.md"):
        shutil.copy(ROOT / name, tree)
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", "out"]
    environment = os.environ | {"CC": "false"}
    done = subprocess.run(
        command, cwd=tree, env=environment, check=True, capture_output=True, text=True
    )
    assert "the wheel is pure Python: nothing can be compiled here" in done.stdout + done.stderr
    (path,) = (tree / "out").iterdir()
    assert "py3-none-any" in path.name


def test_the_distribution_is_not_named_like_its_package(shipped: Distribution) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert (shipped.name, shipped.version) == ("delta-tailer", project["version"])
    assert shipped.metadata["Requires-Python"] == ">=3.11"
    assert shipped.metadata["License-Expression"] == "Apache-2.0"


def test_the_core_needs_no_spark(shipped: Distribution) -> None:
    core = [requirement for requirement in shipped.requires or [] if "extra ==" not in requirement]
    assert not [requirement for requirement in core if "spark" in requirement.lower()]
    assert any(requirement.startswith("pyarrow") for requirement in core)


def test_the_program_and_the_sinks_are_entry_points(shipped: Distribution) -> None:
    points = {(point.group, point.name): point.value for point in shipped.entry_points}
    assert points["console_scripts", "tailer"] == "tailer.__main__:run"
    assert points["tailer.sinks", "jsonl"] == "sinks.jsonl:JsonlSink"
    for (group, _), value in points.items():
        assert value.startswith("sinks." if group == "tailer.sinks" else "tailer.")


def test_every_entry_point_loads_from_the_wheel(site: Path) -> None:
    assert run_from(site, "-c", LOAD).split() == [
        str(site / "sinks" / "__init__.py"),
        str(site / "tailer" / "__init__.py"),
    ]


def test_the_program_starts_from_the_wheel(site: Path) -> None:
    assert "tailer" in run_from(site, "-m", "tailer", "--help")
