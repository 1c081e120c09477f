"""Builds the compiled modules into the wheel: ``_rowbytes.c`` where there is a C compiler, and the
crate in native/ where there is cargo.

Without these, or with TAILER_PURE=1, the wheel is pure Python: the same results, made by Arrow's
functions at more cost. An editable installation has the crate from ``make native`` alone: its first
build takes minutes.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

__all__ = ["CompiledModules", "crate", "crate_target"]

SOURCE = "tailer/native/_rowbytes.c"
CRATE, INSTALLED = "native", "tailer/native/_parquet.abi3.so"
BUILT = f"release/lib_parquet.{'dylib' if sys.platform == 'darwin' else 'so'}"
#: The stable ABI of the oldest Python that the project supports, and its name in a wheel's tag.
ABI, TAG = "0x030b0000", "cp311-abi3"


class CompiledModules(BuildHookInterface[Any]):
    """Hatch's build hook of this project."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """See Hatch's documentation, "Build hook plugins"."""
        if self.target_name != "wheel" or os.environ.get("TAILER_PURE") == "1":
            return
        root = Path(self.root)
        built = [*compiled(root), *(crate(root) if version != "editable" else [])]
        if not built:
            self.app.display_warning("the wheel is pure Python: nothing can be compiled here")
            return
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["pure_python"] = False
        build_data["tag"] = f"{TAG}-{platform}"
        build_data["artifacts"] += [f"/{path}" for path in built]


def compiled(root: Path) -> list[str]:
    """Return the paths of the extensions below the root; none where they can't be compiled."""
    from setuptools import Distribution, Extension
    from setuptools.command.build_ext import build_ext

    module = Extension(
        SOURCE.removesuffix(".c").replace("/", "."),
        [SOURCE],
        define_macros=[("Py_LIMITED_API", ABI)],
        extra_compile_args=["-O3"],
        py_limited_api=True,
    )
    before = Path.cwd()
    os.chdir(root)
    try:
        command = build_ext(Distribution({"name": "delta-tailer", "ext_modules": [module]}))
        command.inplace = True
        command.build_temp = str(root / "build" / "native")
        command.ensure_finalized()
        command.run()
        return [str(command.get_ext_filename(module.name))]
    except Exception as e:  # noqa: BLE001  # of whatever kind: nobody needs it
        print(f"{SOURCE}: {e}", file=sys.stderr)
        return []
    finally:
        os.chdir(before)


def crate(root: Path) -> list[str]:
    """Return the path of the crate's module below the root, built anew if it is not up to date;
    nothing where it can't be built."""
    manifest = root / CRATE / "Cargo.toml"
    cargo = shutil.which("cargo")
    if cargo is None or not manifest.exists():
        return []
    target = crate_target(root)
    source = _digest(*sorted((root / CRATE / "src").iterdir()))
    built_of = target / "source"
    if not built_of.exists() or built_of.read_text() != source:
        # Another clone has used the folder, and cargo looks at nothing but times.
        built_of.unlink(missing_ok=True)
        (root / CRATE / "src" / "lib.rs").touch()
    command = [cargo, "build", "--release", "--locked", "--quiet", "--manifest-path", str(manifest)]
    done = subprocess.run([*command, "--target-dir", str(target)], check=False)  # noqa: S603
    if done.returncode:
        return []
    built_of.write_text(source)
    part = root / f"{INSTALLED}.{os.getpid()}"  # a process that has loaded the old one keeps it
    shutil.copy(target / BUILT, part)
    part.replace(root / INSTALLED)
    return [INSTALLED]


def crate_target(root: Path) -> Path:
    """Return the folder of what cargo builds, by the versions of Cargo.lock: in .cache where the
    tests have one."""
    key = _digest(root / CRATE / "Cargo.lock")
    return root / (".cache" if (root / ".cache").exists() else "build") / f"cargo-{key}"


def _digest(*files: Path) -> str:
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:16]
