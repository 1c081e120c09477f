"""The crate in native/, built before the tests and checked by `make lint`:

    python -m tests.support.crate

Its style and clippy's findings, and where `cargo-deny` is installed, the licences, sources and
known vulnerabilities of the crates that it is built of (native/deny.toml); nothing where there is
no cargo, or no network to fetch crates by.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from pathlib import Path

from hatch_build import crate, crate_target
from tests.support.components import CACHE, Component, NotMade
from tests.support.source import ROOT


class _Crate(Component):
    """Cargo itself knows what has changed since it was built last."""

    def prepare(self) -> bool:
        if missing := self._missing():
            raise NotMade(f"{missing} is missing")
        CACHE.mkdir(exist_ok=True)
        with (CACHE / f"{self.name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            self._make(ROOT)
        return True


def _make(root: Path) -> None:
    if not crate(root):
        raise NotMade("cargo can't build it, and says why above")


CRATE = _Crate(
    "native",
    "the crate in native/",
    home=lambda: "native",
    make=_make,
    missing=lambda: "" if shutil.which("cargo") else "cargo",
)


def main() -> None:
    """Check style and findings; the status is cargo's."""
    if shutil.which("cargo") is None:
        print("cargo is missing: the crate in native/ is not checked")
        sys.exit(1 if os.environ.get("CI") == "true" else 0)
    crate_options = ["--manifest-path", str(ROOT / "native" / "Cargo.toml")]
    fetched = subprocess.run(["cargo", "fetch", "--locked", "-q", *crate_options], check=False)
    if fetched.returncode and os.environ.get("CI") != "true":
        print("crates can't be fetched: the crate in native/ is not checked")
        return
    subprocess.run(["cargo", "fmt", "--check", *crate_options], check=True)
    # Beside the release, of which it takes what needs no check.
    CACHE.mkdir(exist_ok=True)
    build = ["--release", "--locked", "-q", "--target-dir", str(crate_target(ROOT))]
    command = ["cargo", "clippy", *crate_options, *build, "--", "-D", "warnings"]
    subprocess.run(command, check=True)
    _check_dependencies(crate_options)


def _check_dependencies(crate_options: list[str]) -> None:
    """Check what the crate is built of; without network, all but the advisories."""
    if shutil.which("cargo-deny") is None:
        print("cargo-deny is missing: what the crate is built of is not checked (CI does)")
        return
    deny = ["cargo", "deny", "-L", "error", *crate_options, "--locked"]
    subprocess.run([*deny, "check", "bans", "licenses", "sources"], check=True)
    fetched = subprocess.run([*deny, "fetch", "db"], check=False, capture_output=True)
    if fetched.returncode and os.environ.get("CI") != "true":
        print("there is no network: the crates' advisories are not checked")
        return
    subprocess.run([*deny, "check", "advisories"], check=True)


if __name__ == "__main__":
    main()
