"""The release's wheels for other machines than this one, built here by zig's C compiler.

A wheel for another machine is the proved wheel with its compiled modules replaced. Rust's library
for the machine must be there (``rustup target add``, or Debian's packages), or its source, of which
it is then built. Where there is neither, the machine is left out by name: the workflow ``release``
builds that wheel.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tempfile
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Machine:
    """``rust`` and ``zig`` are the machine's names there, with the oldest glibc; ``tag`` is the
    end of its wheel's name."""

    rust: str
    zig: str
    tag: str

    @property
    def processor(self) -> str:
        """What it has."""
        return self.rust.partition("-")[0]

    @property
    def oldest(self) -> str:
        """Rust's name with zig's version of the C library."""
        return self.rust + self.zig.partition("gnu")[2]


#: musl 1.2 is what Alpine has since 3.13, and glibc 2.28 that of RHEL 8 and Debian 10.
MACHINES = (
    Machine("aarch64-unknown-linux-gnu", "aarch64-linux-gnu.2.28", "manylinux_2_28_aarch64"),
    Machine("aarch64-unknown-linux-musl", "aarch64-linux-musl", "musllinux_1_2_aarch64"),
    Machine("x86_64-unknown-linux-musl", "x86_64-linux-musl", "musllinux_1_2_x86_64"),
)
NATIVE = "tailer/native"


def lacking(machine: Machine) -> str:
    """Return what is not here to build for a machine; empty if all is."""
    if not _library(machine).is_dir() and not _source().is_dir():
        return f"Rust's library for {machine.rust}, and its source,"
    return ""


def _rustc(*options: str) -> str:
    command = [os.environ.get("RUSTC", "rustc"), *options]
    return subprocess.run(command, check=True, text=True, stdout=subprocess.PIPE).stdout.strip()


def _library(machine: Machine) -> Path:
    return Path(_rustc("--print", "target-libdir", "--target", machine.rust))


def _source() -> Path:
    return Path(_rustc("--print", "sysroot")) / "lib/rustlib/src/rust/library"


def build_wheel(
    machine: Machine, proved: Path, source: Path, environment: Mapping[str, str]
) -> Path:
    """Return the wheel for a machine, beside the proved one. ``source`` is the project's, of the
    same commit; ``environment`` is what the proved one was built with."""
    with tempfile.TemporaryDirectory(prefix="machine-") as name:
        folder = Path(name)
        modules = {
            "_parquet.abi3.so": _crate(machine, source, folder, environment),
            "_rowbytes.abi3.so": _extension(machine, source, folder),
        }
        if machine.rust.endswith("musl"):
            for path in modules.values():
                _name_musl(machine, path, environment)
        built = with_modules(proved, folder, machine, modules)
        repair = [sys.executable, "-m", "auditwheel", "repair", "--wheel-dir"]
        # It finds by itself which C library the modules are for, and which is the oldest.
        subprocess.run([*repair, proved.parent, built], check=True, env=_environ(environment))
    wheel = proved.parent / f"{_project(proved)}-{machine.tag}.whl"
    if not wheel.exists():
        sys.exit(f"the wheel for {machine.rust} was not to be for {machine.tag}")
    return wheel


def _crate(machine: Machine, source: Path, folder: Path, environment: Mapping[str, str]) -> Path:
    command = [str(Path(sys.executable).parent / "cargo-zigbuild"), "zigbuild"]
    command += ["--release", "--locked", "--quiet", "--target", machine.oldest]
    command += ["--manifest-path", str(source / "native/Cargo.toml"), "--target-dir", str(folder)]
    flags = environment.get("RUSTFLAGS", "")
    own = {"PYO3_NO_PYTHON": "1", "PYO3_BUILD_EXTENSION_MODULE": "1"}
    if machine.rust.endswith("musl"):  # what is loaded can't bring a C library of its own
        own["RUSTFLAGS"] = f"{flags} -C target-feature=-crt-static"
    if not _library(machine).is_dir():
        command += ["-Z", "build-std=std,panic_unwind"]
        own["RUSTC_BOOTSTRAP"] = "1"
    subprocess.run(command, check=True, env=_environ({**environment, **own}))
    return folder / machine.rust / "release/lib_parquet.so"


def _extension(machine: Machine, source: Path, folder: Path) -> Path:
    built = folder / "_rowbytes.abi3.so"
    command = [sys.executable, "-m", "ziglang", "cc", "-target", machine.zig, "-shared", "-fPIC"]
    command += ["-O3", "-g0", "-s", "-DNDEBUG", "-DPy_LIMITED_API=0x030b0000"]
    command += ["-I", sysconfig.get_paths()["include"], "-o", str(built)]
    subprocess.run([*command, "_rowbytes.c"], check=True, cwd=source / NATIVE)
    return built


def _name_musl(machine: Machine, module: Path, environment: Mapping[str, str]) -> None:
    """Name musl as Alpine does. Any musl takes this name for itself, and auditwheel takes the one
    that zig writes for a file of this machine."""
    names = ("libc.so", f"libc.musl-{machine.processor}.so.1")
    command = ["patchelf", "--replace-needed", *names, str(module)]
    subprocess.run(command, check=True, env=_environ(environment))


def with_modules(proved: Path, folder: Path, machine: Machine, modules: dict[str, Path]) -> Path:
    """Return a copy of a wheel, in a folder, that has these modules and is for another machine.
    Its RECORD is still the first one's; auditwheel writes it anew."""
    copy = folder / f"{_project(proved)}-linux_{machine.processor}.whl"
    replaced = {f"{NATIVE}/{name}": path for name, path in modules.items()}
    with zipfile.ZipFile(proved) as wheel, zipfile.ZipFile(copy, "w") as other:
        compiled = {name for name in wheel.namelist() if name.endswith(".so")}
        if compiled != {*replaced}:
            sys.exit(f"{proved.name} has the modules {sorted(compiled)}, not {sorted(replaced)}")
        for entry in wheel.infolist():
            content = wheel.read(entry)
            if entry.filename.endswith(".dist-info/WHEEL"):
                old = b"-" + proved.stem.rpartition("-")[2].encode()
                content = content.replace(old, f"-linux_{machine.processor}".encode())
            elif entry.filename in compiled:
                content = replaced[entry.filename].read_bytes()
            other.writestr(entry, content)
    return copy


def imports(wheel: Path, python: list[str]) -> str:
    """What a Python of the wheel's machine says when it loads the compiled modules, e.g. one that
    qemu runs."""
    code = (
        "import platform, sysconfig; from tailer.native import _parquet, _rowbytes; "
        # Python finds glibc's version, and of musl not even the name: what it was built for has it.
        "print(sysconfig.get_config_var('MULTIARCH'), platform.libc_ver()[1], "
        "platform.python_version())"
    )
    with tempfile.TemporaryDirectory() as folder:
        zipfile.ZipFile(wheel).extractall(folder)
        return subprocess.run(
            [*python, "-c", code],
            check=True, text=True, stdout=subprocess.PIPE, cwd=folder,
        ).stdout.strip()  # fmt: skip


def _project(wheel: Path) -> str:
    """The beginning of a wheel's name, without its machine."""
    return wheel.name.rpartition("-")[0]


def _environ(environment: Mapping[str, str]) -> dict[str, str]:
    own = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, **environment, "PATH": own}
