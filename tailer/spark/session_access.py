"""The access of the session: what Spark's own configuration says of a table's storage.

The driver asks Java for it. The processes in which Spark plans a data source know no session. They
are on the driver's machine, and ask the driver by a socket whose path is in their environment, from
where the source is registered; so it holds for each query what the session has at that moment, and
no secret is written anywhere. The path's folder is this user's alone.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import socketserver
import tempfile
from atexit import register
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any, NamedTuple

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tailer.errors import ConfigError, TailerError
from tailer.spark.error_sentence import in_worker
from tailer.spark.hadoop_access import Options, hadoop_options, is_hadoop_address
from tailer.spark.hadoop_store import find_hadoop_address, serve_by_hadoop
from tailer.storage import storage_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_VARIABLE = "TAILER_SESSION_ACCESS"
#: The files of Hadoop's own defaults.
_DEFAULTS = "-default.xml"
_PROVIDERS = "hadoop.security.credential.provider.path"
_FOLDER_MAX = 70
#: How long a planning process waits for the driver, in seconds: a provider may be in HDFS.
_PATIENCE_S = 60.0


class Access(NamedTuple):
    """A table's address, and the options of its store."""

    address: str
    options: Options


def session_access(table: str, session: SparkSession | None = None) -> Access:
    """Return what the session says of a table: where it is, if the session's catalog knows it by
    this name, and how its storage is reached. Without a session it is the driver's. Where only
    the session's Hadoop leads, this process can open the table from now on.

    Nothing is said where no session can be asked, as in a client of Spark Connect. Raises
    :class:`ConfigError` for a way of access that our stores do not have.
    """
    place = find_hadoop_address(table)
    if "://" not in table and place is None and not _is_name(table):
        return Access(table, {})
    if session is None and in_worker():
        return _ask_driver(table)
    found = session or SparkSession.getActiveSession()
    java = getattr(found, "_jsparkSession", None)
    if java is None or found is None:
        return Access(table, {})
    address = table if "://" in table or place is not None else _find_location(table, found)
    place = find_hadoop_address(address)
    if place is not None and serve_by_hadoop(place, found):
        return Access(place, {})
    return Access(address, hadoop_options(address, _SessionConf(found.sparkContext._jvm, java)))  # noqa: SLF001


def reached_by_hadoop(address: str, file: str, session: SparkSession) -> str | None:
    """Return the address by which Hadoop's file systems have a table in object storage; None if
    they do not reach ``file``, a path below it."""
    scheme, _, rest = address.partition("://")
    schemes = (scheme, "s3a") if scheme in ("s3", "s3n") else (scheme,)
    for one in schemes if is_hadoop_address(address) else ():
        place = f"{one}://{rest.rstrip('/')}"
        jvm: Any = session.sparkContext._jvm  # noqa: SLF001
        with suppress(Py4JError):
            path = jvm.org.apache.hadoop.fs.Path(f"{place}/{file}")
            conf = session._jsparkSession.sessionState().newHadoopConf()  # noqa: SLF001
            path.getFileSystem(conf).getFileStatus(path)
            return place
    return None


def _is_name(table: str) -> bool:
    """Return whether this may be the name of a table of a catalog, as there is no such folder."""
    return re.fullmatch(r"[^/\\#:]+", table) is not None and not Path(table, "_delta_log").is_dir()


def _find_location(name: str, session: SparkSession) -> str:
    """Return where the table of this name is; the name itself if there is none."""
    with suppress(PySparkException):
        if session.catalog.tableExists(name):
            rows = session.sql(f"DESCRIBE TABLE EXTENDED {name}").collect()
            places = [row.data_type for row in rows if row.col_name == "Location"]
            return str(next(filter(None, places), name))
    return name


class _SessionConf:
    """See :class:`tailer.spark.hadoop_access.HadoopConf`."""

    def __init__(self, jvm: Any, session: Any) -> None:
        self._jvm = jvm
        self._conf = session.sessionState().newHadoopConf()

    def get(self, name: str) -> str | None:
        sources = self._conf.getPropertySources(name)
        if sources is not None and len(sources) and sources[len(sources) - 1].endswith(_DEFAULTS):
            return None
        value = self._conf.get(name)
        return None if value is None else str(value).strip()

    def secret(self, name: str) -> str | None:
        characters = self._conf.getPassword(name)
        return None if characters is None else str(self._jvm.java.lang.String(characters)).strip()

    def use_providers(self, path: str) -> None:
        before = self._conf.get(_PROVIDERS)
        self._conf.set(_PROVIDERS, f"{path},{before}" if before else path)


# The driver answers the processes that plan


def offer_session_access() -> None:
    """Let the processes of a source that is being registered ask for the active session's
    access."""
    context, session = SparkContext._active_spark_context, SparkSession.getActiveSession()  # noqa: SLF001
    if context is not None and session is not None:
        server = _start_server_once()
        server.session = session
        context.environment[_VARIABLE] = server.path


class _SessionServer(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True

    def __init__(self) -> None:
        self.session: SparkSession | None = None
        # For this user alone; the path of a socket has about a hundred bytes.
        folder = tempfile.mkdtemp(
            prefix="tailer-",
            dir="/tmp" if len(tempfile.gettempdir()) > _FOLDER_MAX else None,  # noqa: S108 - not a file of this name
        )
        register(shutil.rmtree, folder, ignore_errors=True)
        self.path = str(Path(folder, "access"))
        super().__init__(self.path, _TableAnswer)
        Thread(target=self.serve_forever, name="tailer-access", daemon=True).start()


@lru_cache(maxsize=1)
def _start_server_once() -> _SessionServer:
    return _SessionServer()


class _TableAnswer(socketserver.StreamRequestHandler):
    """What the session says of the table in a line, or the sentence of an error, as JSON."""

    server: _SessionServer

    def handle(self) -> None:
        table = json.loads(self.rfile.readline())
        try:
            answer: Any = session_access(table, self.server.session)
            if find_hadoop_address(answer.address) is not None:
                storage_of(answer.address)  # which says so if Hadoop has none either
                answer = (
                    f"{answer.address} is read through Spark's driver, for which format tailer has "
                    "no way: use changes or foreach_batch of tailer.spark"
                )
        except TailerError as e:
            answer = str(e)
        except Exception:  # noqa: BLE001  # the session has ended
            return
        self.wfile.write(json.dumps(answer).encode())


def _ask_driver(table: str) -> Access:
    """Ask the driver, if there is one in Python."""
    path, answer = os.environ.get(_VARIABLE), b""
    with socket.socket(socket.AF_UNIX) as connection, suppress(OSError):
        connection.settimeout(_PATIENCE_S)
        connection.connect(path or "")
        connection.sendall(json.dumps(table).encode() + b"\n")
        answer = b"".join(iter(lambda: connection.recv(65536), b""))
    found = json.loads(answer or b"null")
    if isinstance(found, str):
        raise ConfigError(found)
    if found is None:
        return Access(table, {})
    address, options = found
    return Access(address, options)
