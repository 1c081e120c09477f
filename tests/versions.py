"""The core of the tests with other versions of what pyproject.toml allows: the lowest, the highest.

    python -m tests.versions lowest|highest [OPTION OF PYTEST ...]

The versions are chosen by uv, and installed into an environment of their own in ``.cache``: again
when pyproject.toml has changed and, for the highest, each day. `make test-lowest`, `make
test-highest`.
"""

from __future__ import annotations

import argparse
import datetime as dt
import hashlib
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.support.components import Component, NotMade, python_tag, run_maker
from tests.support.source import ROOT

#: uv's names. Lowest are those that pyproject.toml names; what these need themselves is the newest.
RESOLUTIONS = {"lowest": "lowest-direct", "highest": "highest"}
EXTRAS = "all,demo"
# Of the development's extra: what the core's own files need.
TOOLS = (
    "confluent-kafka",
    "fastavro",
    "grpcio-tools",
    "hatchling",
    "hypothesis",
    "orjson",
    "polars",
    "psutil",
    "pytest",
    "pytz",
)

#: Each dependency is driven by some of these: pyarrow, DuckDB and pyroaring; aiohttp, aiobotocore
#: and yarl; kafka-python against a real broker; prometheus-client; cryptography.
CORE = (
    "tests/conformance",
    "tests/decode",
    "tests/delta",
    "tests/golden",
    "tests/kafka/test_sink.py",
    "tests/kafka/test_broker_away.py",
    "tests/kafka/test_options.py",
    "tests/offsets",
    "tests/property/test_delta_keys.py",
    "tests/share_server/test_our_client.py",
    "tests/share_server/test_rest.py",
    "tests/sharing/test_client.py",
    "tests/sharing/test_private_key.py",
    "tests/sinks",
    "tests/store/test_local.py",
    "tests/store/test_s3.py",
    "tests/daemon/test_daemon.py",
    "tests/feed/test_feed.py",
    "tests/daemon/test_metrics.py",
)
BUILT_FROM = ("pyproject.toml", "hatch_build.py", "tailer/native/_rowbytes.c")


def environment(which: str) -> Component:
    """The environment with the lowest or the highest versions."""
    return Component(
        which,
        f"an environment with the {which} versions",
        home=lambda: f"{which}-{_key(which)}",
        make=_installer(RESOLUTIONS[which]),
    )


def _key(which: str) -> str:
    parts = [(ROOT / name).read_bytes() for name in BUILT_FROM]
    today = dt.datetime.now(dt.UTC).date().isoformat() if which == "highest" else ""
    chosen = (EXTRAS, *TOOLS, python_tag(), today)
    text = b"\0".join([*parts, *(each.encode() for each in chosen)])
    return hashlib.sha256(text).hexdigest()[:16]


def _installer(resolution: str) -> Callable[[Path], None]:
    def install(home: Path) -> None:
        uv: list[str | Path] = [sys.executable, "-m", "uv"]
        run_maker([*uv, "venv", "--quiet", "--clear", "--seed", "--python", sys.executable, home])
        python = home / "bin" / "python"
        chosen: list[str | Path] = ["--python", python, "--resolution", resolution, "--quiet"]
        wanted: list[str | Path] = ["--editable", f"{ROOT}[{EXTRAS}]", *tools_of_core()]
        run_maker([*uv, "pip", "install", *chosen, *wanted])

    return install


def tools_of_core() -> list[str]:
    """What the core of the tests needs from the development's extra, with its versions."""
    development: list[str] = _project()["optional-dependencies"]["dev"]
    return [wanted for wanted in development if wanted.startswith(TOOLS)]


def supported_pythons() -> list[str]:
    """The versions of Python that pyproject.toml names, the oldest first."""
    named = r"Programming Language :: Python :: (3\.\d+)"
    return [found[1] for each in _project()["classifiers"] if (found := re.fullmatch(named, each))]


def _project() -> Any:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def main() -> None:
    """Install, say what is installed, and run the core."""
    parser = argparse.ArgumentParser(prog="python -m tests.versions")
    parser.add_argument("which", choices=list(RESOLUTIONS))
    given, options = parser.parse_known_args()
    component = environment(given.which)
    try:
        component.prepare()
    except (NotMade, OSError) as e:
        sys.exit(f"the {given.which} versions can't be installed: {e}")
    home = component.path()
    listed = [sys.executable, "-m", "uv", "pip", "freeze", "--python", str(home / "bin/python")]
    subprocess.run(listed, check=True)
    environ = {**os.environ, "VIRTUAL_ENV": str(home)}
    command = [str(home / "bin/python"), "-m", "pytest", "-m", "not slow", *CORE, *options]
    sys.exit(subprocess.run(command, cwd=ROOT, env=environ, check=False).returncode)


if __name__ == "__main__":
    main()
