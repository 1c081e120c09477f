"""A Spark whose Python modules are compiled, as docs/spark-details.md tells its users to make one.

Spark's workers import pyspark from a zip archive of sources, which Python compiles anew in each
process that it does not fork; the process of a query's source is one.
"""

from __future__ import annotations

import shutil
import tempfile
import zipfile
from compileall import compile_dir
from pathlib import Path
from py_compile import PycInvalidationMode

import pyspark


def compiled_spark_home(folder: Path) -> Path:
    """The installed Spark by symbolic links, its archives compiled; made once in a folder."""
    home, own = folder / f"spark-{pyspark.__version__}-compiled", Path(pyspark.__file__).parent
    if home.exists():
        return home
    made = folder / f"{home.name}.new"
    shutil.rmtree(made, ignore_errors=True)
    (made / "python/lib").mkdir(parents=True)
    for entry in own.iterdir():
        if entry.name != "python":
            (made / entry.name).symlink_to(entry)
    for archive in (own / "python/lib").glob("*.zip"):
        _compile(archive, made / "python/lib" / archive.name)
    made.rename(home)
    return home


def _compile(archive: Path, into: Path) -> None:
    """The archive with each module's byte code beside its source."""
    with tempfile.TemporaryDirectory() as modules:
        with zipfile.ZipFile(archive) as source:
            source.extractall(modules)
        mode = PycInvalidationMode.UNCHECKED_HASH
        compile_dir(modules, quiet=1, legacy=True, invalidation_mode=mode)
        shutil.make_archive(str(into.with_suffix("")), "zip", modules)
