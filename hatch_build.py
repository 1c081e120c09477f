"""Builds the compiled modules (tailer/_*.c) into the wheel, where there is a C compiler.

Without one, or with TAILER_PURE=1, the wheel is pure Python: the same results, made by Arrow's
functions at more cost.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

__all__ = ["CompiledModules"]

SOURCES = ("tailer/native/_footers.c", "tailer/native/_pages.c", "tailer/native/_rowbytes.c")
#: What they include.
HEADERS = (
    "tailer/native/_crc32.h",
    "tailer/native/_snappy.h",
    "tailer/native/_thrift.h",
    "tailer/native/_values.h",
)
#: The stable ABI of the oldest Python that the project supports, and its name in a wheel's tag.
ABI, TAG = "0x030b0000", "cp311-abi3"


class CompiledModules(BuildHookInterface[Any]):
    """Hatch's build hook of this project."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002
        """See Hatch's documentation, "Build hook plugins"."""
        if self.target_name != "wheel" or os.environ.get("TAILER_PURE") == "1":
            return
        built = compiled(Path(self.root))
        if not built:
            self.app.display_warning("the wheel is pure Python: its C files can't be compiled")
            return
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["pure_python"] = False
        build_data["tag"] = f"{TAG}-{platform}"
        build_data["artifacts"] += [f"/{path}" for path in built]


def compiled(root: Path) -> list[str]:
    """Return the paths of the extensions below the root; none where they can't be compiled."""
    from setuptools import Distribution, Extension
    from setuptools.command.build_ext import build_ext

    modules = [
        Extension(
            source.removesuffix(".c").replace("/", "."),
            [source],
            define_macros=[("Py_LIMITED_API", ABI)],
            extra_compile_args=["-O3"],
            depends=list(HEADERS),
            py_limited_api=True,
        )
        for source in SOURCES
    ]
    before = Path.cwd()
    os.chdir(root)
    try:
        command = build_ext(Distribution({"name": "delta-tailer", "ext_modules": modules}))
        command.inplace = True
        command.build_temp = str(root / "build" / "native")
        command.ensure_finalized()
        command.run()
        return [str(command.get_ext_filename(module.name)) for module in modules]
    except Exception as e:  # noqa: BLE001  # of whatever kind: nobody needs it
        print(f"{', '.join(SOURCES)}: {e}", file=sys.stderr)
        return []
    finally:
        os.chdir(before)
