"""Imports stand at the top; one in a function is an exception that has a reason."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache

from tests.support.source import python_files

#: Slow to load, or not installed with every extra: a command or a sink loads what it uses. Who has
#: loaded `atexit` may have registered something.
SLOW_OR_OPTIONAL = {
    "_md5", "aiobotocore", "anyio", "asyncinotify", "asyncio", "atexit", "botocore",
    "cryptography", "deltalake", "difflib", "duckdb", "hashlib", "importlib", "jwt",
    "logging", "msgspec", "nats", "obstore", "pika", "polars", "prometheus_client", "psycopg",
    "pyarrow", "pymysql", "pyspark", "redis", "socket", "tempfile", "tqdm", "traceback", "zoneinfo",
}  # fmt: skip
#: Folders and files where a part is loaded when it is asked for: a command, a kind of storage, a
#: format, what a table's log or a commit seldom needs, Spark's classes by release.
BORDERS = (
    "sinks/formats/load.py",
    "sinks/nats/stream.py",
    "sinks/pubsub/sink.py",
    "tailer/__main__.py",
    "tailer/cli/",
    "tailer/daemon/assembly.py",
    "tailer/decode/project.py",
    "tailer/feed/commit.py",
    "tailer/log/",
    "tailer/plan/live_files.py",
    "tailer/share_server/serve.py",
    "tailer/spark/",
    "tailer/storage/",
    "tailer/store/local.py",
    "tailer/store/objects/store.py",
)


def late(node: ast.AST, *, within: bool = False) -> Iterator[str]:
    """Yield the modules that functions import."""
    for child in ast.iter_child_nodes(node):
        if within and isinstance(child, ast.ImportFrom):
            yield child.module or ""
        elif within and isinstance(child, ast.Import):
            yield from (name.name for name in child.names)
        function = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)
        yield from late(child, within=within or function)


@cache
def found() -> list[tuple[str, str]]:
    files = python_files("tailer", "sinks")
    return [(str(f.path), name) for f in files for name in late(ast.parse(f.text))]


def test_a_late_import_is_of_a_slow_library_or_at_a_border() -> None:
    own = {"tailer", "sinks"}
    for file, module in found():
        first = module.partition(".")[0]
        allowed = file.startswith(BORDERS) if first in own else first in SLOW_OR_OPTIONAL
        assert allowed, f"{file}: import {module} at the top"


def test_late_imports_get_no_more() -> None:
    """Whoever adds one finds another that can go."""
    assert len(found()) <= 114


def test_imports_in_functions_and_in_their_blocks_are_seen() -> None:
    tree = ast.parse(
        "import a\ndef f():\n    import b\n    with c:\n        from d.e import g\n"
        "class H:\n    import i\n    def j(self):\n        def k():\n            import m, n\n"
    )
    assert list(late(tree)) == ["b", "d.e", "m", "n"]
