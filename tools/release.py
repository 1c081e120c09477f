"""What a release consists of, built and proved: ``make release``.

    python -m tools.release [--without-tests] [--python-of TAG=COMMAND ...]

All of it is made from the last commit: the source distribution and the wheel for this kind of
machine, each built twice in different folders, which must give the same bytes; what they consist of
(SBOM); the checksums. Then each Python that the project supports installs the wheel into an empty
environment, where it verifies a table by itself and passes the core of the tests. At last come the
wheels for other machines (:mod:`tools.release_machines`), as far as Rust has them here. A Python of
such a machine, which qemu may run, loads their modules:

    --python-of "manylinux_2_28_aarch64=qemu-aarch64 -L /sysroot /sysroot/usr/bin/python3"
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.support.components import CACHE
from tests.support.source import ROOT
from tests.versions import CORE, EXTRAS, supported_pythons, tools_of_core
from tools.release_machines import MACHINES, build_wheel, imports, lacking

DIST = ROOT / "dist"
#: Bytes that a wheel has at most.
SIZE_MAX = 8 * 1024 * 1024
#: A table that Spark wrote, which the installed command verifies.
GOLDEN = ROOT / "tests" / "golden" / "data" / "cdf_dv.tar.gz"
# What the tests of the installed wheel read beside it; tailer/ and sinks/ are not among them.
TREE = ("tests", "docs", "deploy", "native", "pyproject.toml", "hatch_build.py", "README.md")


def main() -> None:
    """Build, prove, and say what lies in dist/."""
    parser = argparse.ArgumentParser(prog="python -m tools.release")
    parser.add_argument("--without-tests", action="store_true", help="install the wheel, no more")
    parser.add_argument("--python-of", action="append", default=[], metavar="TAG=COMMAND")
    options = parser.parse_args()
    if _output("git", "status", "--porcelain"):
        sys.exit("there are changes that are not committed: a release is made from a commit")
    # Named once: somebody may commit while it builds.
    commit = _output("git", "rev-parse", "HEAD")
    shutil.rmtree(DIST, ignore_errors=True)
    DIST.mkdir()
    with tempfile.TemporaryDirectory(prefix="release-") as name:
        folder = Path(name)
        first, second = (
            _build(commit, folder / each) for each in ("first", "the second, elsewhere")
        )
        if names := differing(first, second):
            sys.exit(f"two builds of one commit differ: {', '.join(names)}")
        for path in first.iterdir():
            shutil.copy(path, DIST)
        (wheel,) = DIST.glob("*.whl")
        tree = folder / "tree"
        _unpack(commit, tree, *TREE)
        _prove_wheel(wheel, folder, tree, without_tests=options.without_tests)
        _prove_installers(wheel, folder)
        if sys.platform == "linux":
            source = folder / "first" / "source"
            _build_others(wheel, source, _environment(commit), options.python_of)
    for wheel in DIST.glob("*.whl"):
        if wheel.stat().st_size > SIZE_MAX:
            sys.exit(f"{wheel.name} has {wheel.stat().st_size} bytes, of {SIZE_MAX} at most")
    shutil.copy(ROOT / "docs" / "reliability.json", DIST)  # what was run, and what it saw
    (DIST / "SHA256SUMS").write_text(checksums(DIST), encoding="utf-8")
    print((DIST / "SHA256SUMS").read_text(encoding="utf-8"))


def _build(commit: str, folder: Path) -> Path:
    """Build a commit in a folder; return where the distributions lie."""
    source, built, repaired = folder / "source", folder / "built", folder / "dist"
    _unpack(commit, source)
    environment = _environment(commit)
    build = (sys.executable, "-m", "build", "--no-isolation", "--outdir", built, source)
    _run(*build, environment=environment)
    (wheel,) = built.glob("*.whl")
    if "py3-none-any" in wheel.name:
        sys.exit("the wheel is pure Python: cargo and a C compiler are needed")
    repaired.mkdir()
    if sys.platform == "linux":  # it names the oldest C library that the modules run with
        programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        repair = (sys.executable, "-m", "auditwheel", "repair", "--wheel-dir", repaired, wheel)
        _run(*repair, environment=environment | {"PATH": programs})  # where patchelf is
    else:
        shutil.copy(wheel, repaired)
    (archive,) = built.glob("*.tar.gz")
    shutil.copy(archive, repaired)
    return repaired


def _environment(commit: str) -> dict[str, str]:
    """What is built with, so that it is the same bytes each time."""
    cargo = os.environ.get("CARGO_HOME", str(Path.home() / ".cargo"))
    return {
        "SOURCE_DATE_EPOCH": _output("git", "log", "-1", "--format=%ct", commit),
        # Neither the builder's home nor the folder is named by what is compiled.
        "RUSTFLAGS": f"--remap-path-prefix={cargo}=cargo",
        "CFLAGS": "-g0",
        # A module for every Python names no Python's library.
        "PYO3_BUILD_EXTENSION_MODULE": "1",
    }


def _build_others(
    proved: Path, source: Path, environment: Mapping[str, str], pythons: Sequence[str]
) -> None:
    """The wheels for other machines, as far as they can be built here."""
    commands = {tag: shlex.split(run) for tag, _, run in (each.partition("=") for each in pythons)}
    for machine in MACHINES:
        if lack := lacking(machine):
            print(f"{machine.tag}: {lack} is missing: the workflow builds this wheel", flush=True)
            continue
        wheel = build_wheel(machine, proved, source, environment)
        said = imports(wheel, commands[machine.tag]) if machine.tag in commands else "not loaded"
        print(f"{wheel.name}: {wheel.stat().st_size} bytes, {said}", flush=True)


def _unpack(commit: str, folder: Path, *paths: str) -> None:
    """Write the files of a commit, or some of them, into a folder."""
    folder.mkdir(parents=True)
    archive = folder.parent / f"{folder.name}.tar"
    _run("git", "archive", "--output", archive, commit, *paths)
    shutil.unpack_archive(archive, folder, filter="data")


def differing(first: Path, second: Path) -> list[str]:
    """Return the names of files that two folders do not both have with the same bytes."""
    one, two = ({path.name: _sha256(path) for path in each.iterdir()} for each in (first, second))
    return sorted(name for name in one | two if one.get(name) != two.get(name))


def checksums(folder: Path) -> str:
    """Return the checksums of a folder's files, as ``sha256sum --check`` reads them."""
    return "".join(f"{_sha256(path)}  {path.name}\n" for path in sorted(folder.iterdir()))


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def bill_of_materials(environment: dict[str, Any], lock: str) -> str:
    """Return what an installation consists of, as CycloneDX: the Python packages of an environment,
    and the crates of a ``Cargo.lock`` that are compiled into the wheel."""
    crates = [
        {
            "type": "library",
            "bom-ref": f"pkg:cargo/{crate['name']}@{crate['version']}",
            "name": crate["name"],
            "version": crate["version"],
            "purl": f"pkg:cargo/{crate['name']}@{crate['version']}",
            "hashes": [{"alg": "SHA-256", "content": crate["checksum"]}],
        }
        for crate in tomllib.loads(lock)["package"]
        if "checksum" in crate  # all but our own
    ]
    whole = environment | {"components": [*environment["components"], *crates]}
    return json.dumps(whole, indent=2, sort_keys=True) + "\n"


def _prove_wheel(wheel: Path, folder: Path, tree: Path, *, without_tests: bool) -> None:
    """Use the wheel as an installation of its own, with each Python that is there, beside the
    tests of its commit."""
    (tree / ".cache").symlink_to(CACHE.resolve())
    described = False
    for version in supported_pythons():
        python = _python(version)
        if python is None:
            print(f"python{version} is missing: the wheel is not proved with it", flush=True)
            continue
        home = folder / f"python{version}"
        _run(sys.executable, "-m", "uv", "venv", "--quiet", "--python", python, home)
        own = home / "bin" / "python"
        install = (sys.executable, "-m", "uv", "pip", "install", "--quiet", "--python", own)
        _run(*install, wheel)
        _first_steps(home / "bin" / "tailer")
        _run(*install, f"{wheel}[{EXTRAS}]")
        if not described:
            _describe(wheel, own)
            described = True
        if not without_tests:
            _run(*install, "pip", *tools_of_core())  # a test installs a package by it
            print(f"the core of the tests with python{version}", flush=True)
            _run(own, "-m", "pytest", "-q", "-m", "not slow", *CORE, cwd=tree)


def _python(version: str) -> str | None:
    """The program of a version of Python, None where it is missing; with CI=true that fails."""
    python = shutil.which(f"python{version}")
    if python and not subprocess.run([python, "-V"], capture_output=True, check=False).returncode:
        return python
    for home in sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python")):
        return str(home)
    if os.environ.get("CI") == "true":
        sys.exit(f"python{version} is missing, and with CI=true nothing is left out")
    return None


def _first_steps(tailer: Path) -> None:
    """The command, from a folder that has nothing: it is whole, and reads a table."""
    with tempfile.TemporaryDirectory() as empty:
        said = _output(tailer, "--version", cwd=Path(empty))
        if "not compiled" in said:
            sys.exit(f"{tailer}: {said}")
        print(f"{tailer}: {said}", flush=True)
        shutil.unpack_archive(GOLDEN, empty, filter="data")
        _run(tailer, "verify", "cdf_dv/table", cwd=Path(empty))


def _describe(wheel: Path, python: Path) -> None:
    environment = json.loads(
        _output(
            sys.executable,
            "-m",
            "cyclonedx_py",
            "environment",
            "--output-reproducible",
            "--pyproject",
            ROOT / "pyproject.toml",
            python,
        )
    )
    lock = (ROOT / "native" / "Cargo.lock").read_text(encoding="utf-8")
    name = "-".join(wheel.name.split("-")[:2])
    (DIST / f"{name}.cdx.json").write_text(bill_of_materials(environment, lock), encoding="utf-8")


def _prove_installers(wheel: Path, folder: Path) -> None:
    """What users install programs with."""
    pipx, uv = folder / "pipx", folder / "uv"
    by_pipx = {"PIPX_HOME": pipx, "PIPX_BIN_DIR": pipx / "bin", "PIPX_MAN_DIR": pipx / "man"}
    install = (sys.executable, "-m", "pipx", "install", "--python", sys.executable, wheel)
    _run(*install, environment=by_pipx)
    _first_steps(pipx / "bin" / "tailer")
    by_uv = {"UV_TOOL_DIR": uv, "UV_TOOL_BIN_DIR": uv / "bin"}
    _run(sys.executable, "-m", "uv", "tool", "install", "--quiet", wheel, environment=by_uv)
    _first_steps(uv / "bin" / "tailer")


def _run(
    *command: str | Path, cwd: Path = ROOT, environment: Mapping[str, str | Path] | None = None
) -> None:
    """Run a program whose failure ends this one; ``environment`` goes over what it inherits."""
    environ = _environ() | {name: str(value) for name, value in (environment or {}).items()}
    done = subprocess.run([str(part) for part in command], cwd=cwd, env=environ, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))}: status {done.returncode}")


def _output(*command: str | Path, cwd: Path = ROOT) -> str:
    words = [str(part) for part in command]
    done = subprocess.run(words, cwd=cwd, env=_environ(), check=True, stdout=subprocess.PIPE)
    return done.stdout.decode().strip()


def _environ() -> dict[str, str]:
    """Without what would show a program modules of this folder, or lead it away."""
    hidden = {"PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "TAILER_PURE", "TAILER_NATIVE"}
    return {name: value for name, value in os.environ.items() if name not in hidden}


if __name__ == "__main__":
    main()
