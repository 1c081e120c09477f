"""Compiled parts under gcc's address and undefined-behaviour sanitizers."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from tests.support.components import require
from tests.support.source import ROOT


def watch(source: str, program: str, folder: Path) -> None:
    """Run a module of this folder, a fuzz program, with a C file that is compiled to be watched.

    Its arguments are the extension, the number of rounds, a seed and ``folder``; it prints "done".
    """
    if not sys.platform.startswith("linux"):
        pytest.skip("sanitizers are preloaded, as on Linux")
    compiler = shutil.which("gcc")
    require("gcc", compiler is not None)
    assert compiler is not None
    libraries = [
        subprocess.check_output([compiler, f"-print-file-name=lib{name}.so"], text=True).strip()
        for name in ("asan", "ubsan")
    ]
    require("gcc's sanitizers", all(os.path.isabs(library) for library in libraries))  # noqa: PTH117  # gcc's answer
    built = folder / "watched.so"
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-g", "-O1", "-fsanitize=address,undefined",
         "-fno-sanitize-recover=undefined", "-DPy_LIMITED_API=0x030b0000",
         "-I", sysconfig.get_path("include"), str(ROOT / source), "-o", built],
        check=True, timeout=60,
    )  # fmt: skip
    rounds, seed = 20 * int(os.environ.get("TAILER_TORTURE_ROUNDS", "500")), random.randrange(2**32)
    done = subprocess.run(
        [sys.executable, "-m", f"tests.support.{program}", built, str(rounds), str(seed),
         str(folder)],
        cwd=ROOT,
        env={
            **os.environ, "LD_PRELOAD": ":".join(libraries), "PYTHONMALLOC": "malloc",
            # The interpreter keeps what it has made; and no memory is an error like others.
            "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1",
        },
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stdout == "done\n", f"seed {seed}: {done.stderr[-4000:]}"
