"""Tables that releases of deltalake have written, from one of 2023 to one of this year.

Each release writes in an environment of its own, in `.cache`, where this file is the program:
`python cases_deltalake.py FOLDER [cdf]`.
"""

from __future__ import annotations

import inspect
import subprocess
import sys
import venv
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.golden.lab import Lab

CACHE = Path(__file__).resolve().parents[2] / ".cache"
RELEASES = (
    "0.12.0",
    "0.15.3",
    "0.17.4",
    "0.19.2",
    "0.22.3",
    "0.25.5",
    "1.0.2",
    "1.1.4",
    "1.4.2",
)
#: Some of those that write change data files.
WITH_CDF = ("0.19.2", "0.25.5", "1.1.4", "1.4.2")


def build(folder: str, *, cdf: bool) -> None:
    """Write a table with the deltalake that is installed here."""
    import pyarrow as pa
    from deltalake import DeltaTable, write_deltalake

    known = inspect.signature(write_deltalake).parameters

    def write(first: int, last: int, *more: str, **options: Any) -> None:
        columns = {"id": pa.array(range(first, last), pa.int64())}
        columns |= {name: pa.array([f"{name}{i}" for i in range(first, last)]) for name in more}
        if options.get("schema_mode") == "merge" and "schema_mode" not in known:
            del options["schema_mode"]
            options["overwrite_schema"] = True
        if "schema_mode" in options and "engine" in known:
            options["engine"] = "rust"
        write_deltalake(folder, pa.table(columns), **options)

    write(0, 4, "s", configuration={"delta.enableChangeDataFeed": "true"} if cdf else None)
    write(4, 8, "s", mode="append")
    write(8, 14, "s", "late", mode="overwrite", schema_mode="merge")
    DeltaTable(folder).create_checkpoint()
    write(14, 18, "s", "late", mode="append")
    DeltaTable(folder).update(updates={"s": "'up'"}, predicate="id < 10")
    DeltaTable(folder).delete("id = 11")
    if not cdf:  # Spark's change feed can't be read over the metrics of older releases' compactions
        DeltaTable(folder).optimize.compact()
    write(18, 20, "s", "late", "later", mode="overwrite", schema_mode="merge")
    write(20, 21, "s", "late", "later", mode="append")


def python_of(release: str) -> Path:
    """Return the Python of an environment with that release; it is made once."""
    folder = CACHE / f"deltalake-{release}"
    python = folder / "bin" / "python"
    if not (folder / "made").exists():
        venv.create(folder, with_pip=True, clear=True)
        wanted = [f"deltalake=={release}", "pyarrow<22", "numpy<2"]
        install = [str(python), "-m", "pip", "install", "--quiet", "--only-binary=:all:", *wanted]
        subprocess.run(install, check=True)
        (folder / "made").touch()
    return python


def case(release: str, *, cdf: bool) -> Callable[[Lab], None]:
    """Return what makes the table of a release."""

    def make(lab: Lab) -> None:
        lab.across_schemas = True
        wanted = [str(lab.path), *(["cdf"] if cdf else [])]
        subprocess.run([str(python_of(release)), __file__, *wanted], check=True)

    make.__name__ = f"deltalake_{release.replace('.', '_')}{'_cdf' if cdf else ''}"
    return make


CASES = (
    *(case(release, cdf=False) for release in RELEASES),
    *(case(release, cdf=True) for release in WITH_CDF),
)

if __name__ == "__main__":
    build(sys.argv[1], cdf=sys.argv[2:] == ["cdf"])
