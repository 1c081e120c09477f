"""What a release is made of, and what its pages say of it."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

import pytest

from tests.support.source import ROOT
from tests.versions import CORE, supported_pythons, tools_of_core
from tools.release import bill_of_materials, checksums, differing
from tools.release_machines import MACHINES, imports, with_modules

WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
PROJECT: Any = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def test_ci_runs_each_python_that_is_supported() -> None:
    ci = (ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8")
    release = (ROOT / ".github" / "workflows" / "release.yml").read_text(encoding="utf-8")
    (matrix,) = re.findall(r"python: (\[.*\])", ci)
    assert json.loads(matrix) == supported_pythons()
    (proved,) = re.findall(r'python-version: "(3\.\d+\\n.*)"', release)
    assert sorted(proved.split(r"\n")) == supported_pythons()
    assert f">={supported_pythons()[0]}" == PROJECT["requires-python"]


def test_what_the_policy_calls_tested_is_what_ci_runs() -> None:
    ci = (ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8")
    page = (ROOT / "docs" / "policy.md").read_text(encoding="utf-8")
    rows = {
        cells[0].strip(): cells[2].strip()
        for line in page.splitlines()
        if len(cells := line.strip("|").split("|")) == 3
    }
    assert rows["Python"] == "all, each with the whole suite"
    assert ".ci/run" in ci.partition("matrix:")[2].partition("  lowest:")[0]
    assert {*re.findall(r'java-version: "(\d+)"', ci)} == {rows["Java, for Spark"]}
    # `make test` installs the highest that are allowed.
    assert rows["pyarrow"] == "the lowest and the highest"
    assert "make test-lowest" in ci


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.name)
def test_an_action_is_pinned_to_a_commit(workflow: Path) -> None:
    used = re.findall(r"uses: (.*)", workflow.read_text(encoding="utf-8"))
    assert used
    for action in used:
        assert re.fullmatch(r"[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", action), action


def test_all_is_every_extra_that_a_user_may_need_without_spark() -> None:
    extras = PROJECT["optional-dependencies"]
    (whole,) = extras["all"]
    named = whole.removeprefix("delta-tailer[").removesuffix("]").split(",")
    assert {*named} == {*extras} - {"all", "demo", "dev", "docs", "release", "spark"}


def test_the_changelog_has_a_section_for_the_version() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.search(rf"^## \[{re.escape(PROJECT['version'])}\]", text, re.MULTILINE)


def imported(path: Path) -> set[str]:
    """The modules that a file imports when it is loaded, and not in functions or for types."""
    body = ast.parse(path.read_text(encoding="utf-8")).body
    names = {alias.name for node in body if isinstance(node, ast.Import) for alias in node.names}
    for node in body:
        if isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return names


def core_modules() -> set[str]:
    """All that is imported when the core of the tests is collected, by the tests' own modules."""
    core = [ROOT / name for name in CORE]
    waiting = [each for path in core for each in (path, *path.rglob("test_*.py"))]
    waiting += [each for path in core for each in path.rglob("conftest.py")]
    waiting += [ROOT / "tests/conftest.py"]
    names: set[str] = set()
    seen: set[Path] = set()
    while waiting:
        path = waiting.pop()
        if path in seen or not path.is_file():
            continue
        seen.add(path)
        names |= (new := imported(path))
        files = [ROOT / name.replace(".", "/") for name in new if name.startswith("tests.")]
        waiting += [
            each for file in files for each in (file.with_suffix(".py"), file / "__init__.py")
        ]
    return {name.partition(".")[0] for name in names}


def test_the_core_of_the_tests_imports_nothing_that_a_release_does_not_install() -> None:
    extras = PROJECT["optional-dependencies"]
    (whole,) = extras["all"]
    chosen = ["demo", *whole.removeprefix("delta-tailer[").removesuffix("]").split(",")]
    wanted = [
        *PROJECT["dependencies"],
        *tools_of_core(),
        *(w for name in chosen for w in extras[name]),
    ]
    installed = {re.split(r"[^\w.-]", each)[0].lower().replace("_", "-") for each in wanted}
    known = sys.stdlib_module_names | {"tailer", "sinks", "tests", "tools", "botocore"}
    owners = packages_distributions()
    missing = {
        name
        for name in core_modules() - known
        if not {each.lower().replace("_", "-") for each in owners.get(name, [name])} & installed
    }
    assert not missing


def test_builds_that_differ_are_named(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    for folder in (first, second):
        folder.mkdir()
        (folder / "same.whl").write_bytes(b"1")
        (folder / "other.tar.gz").write_bytes(folder.name.encode())
    (first / "only.whl").write_bytes(b"1")
    assert differing(first, second) == ["only.whl", "other.tar.gz"]


def test_checksums_are_those_of_sha256sum(tmp_path: Path) -> None:
    (tmp_path / "a.whl").write_bytes(b"abc")
    digest = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert checksums(tmp_path) == f"{digest}  a.whl\n"


def test_the_bill_of_materials_names_packages_and_crates() -> None:
    lock = (ROOT / "native" / "Cargo.lock").read_text(encoding="utf-8")
    python = {"name": "pyarrow", "version": "22.0.0"}
    listed = json.loads(bill_of_materials({"components": [python]}, lock))["components"]
    assert python in listed
    (parquet,) = [each for each in listed if each["name"] == "parquet"]
    assert re.fullmatch(r"pkg:cargo/parquet@\d+\.\d+\.\d+", parquet["purl"])
    assert re.fullmatch(r"[0-9a-f]{64}", parquet["hashes"][0]["content"])
    assert "tailer-native" not in {each["name"] for each in listed}


def test_a_wheel_for_another_machine_has_its_modules_and_its_name(tmp_path: Path) -> None:
    proved = tmp_path / "delta_tailer-0.1.0-cp311-abi3-manylinux_2_34_x86_64.whl"
    described = "Tag: cp311-abi3-manylinux_2_34_x86_64\nBuild: 1\n\n"
    contents = {
        "tailer/__init__.py": "same",
        "tailer/native/_parquet.abi3.so": "this machine's",
        "delta_tailer-0.1.0.dist-info/WHEEL": described,
    }
    with zipfile.ZipFile(proved, "w") as wheel:
        for name, text in contents.items():
            wheel.writestr(name, text)
    module = tmp_path / "lib_parquet.so"
    module.write_text("the other's")
    modules = {"_parquet.abi3.so": module}
    other = zipfile.ZipFile(with_modules(proved, tmp_path, MACHINES[0], modules))
    assert other.filename == str(tmp_path / "delta_tailer-0.1.0-cp311-abi3-linux_aarch64.whl")
    assert {name: other.read(name).decode() for name in other.namelist()} == {
        "tailer/__init__.py": "same",
        "tailer/native/_parquet.abi3.so": "the other's",
        "delta_tailer-0.1.0.dist-info/WHEEL": "Tag: cp311-abi3-linux_aarch64\nBuild: 1\n\n",
    }
    with pytest.raises(SystemExit, match=r"not .*_rowbytes"):
        with_modules(proved, tmp_path, MACHINES[0], modules | {"_rowbytes.abi3.so": module})


def test_a_python_that_loads_a_wheel_says_for_which_c_library_it_is(tmp_path: Path) -> None:
    wheel = tmp_path / "wheel.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name in ("tailer/__init__.py", "tailer/native/__init__.py"):
            archive.writestr(name, "")
        for name in ("_parquet.py", "_rowbytes.py"):
            archive.writestr(f"tailer/native/{name}", "")
    assert imports(wheel, [sys.executable]).startswith(sysconfig.get_config_var("MULTIARCH"))
    with zipfile.ZipFile(wheel, "a") as archive:
        archive.writestr("tailer/native/_parquet.abi3.so", "another machine's")
    with pytest.raises(subprocess.CalledProcessError):
        imports(wheel, [sys.executable])
