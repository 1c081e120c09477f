"""What tests need from the machine, and what becomes of them where it is missing.

A user who has no Java still gets a run of everything else, with the rest named as skipped. Where
``CI=true`` the same absence is a failure: there, nothing is skipped unseen.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import re
import secrets
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import pytest

from tailer.native.parquet import native
from tests.support.source import ROOT

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: What is kept between runs.
CACHE = ROOT / ".cache"
# A slow network is waited for, one that hangs is not.
FETCH_TIMEOUT_S = 1800.0

# The Delta that goes with the pyspark of pyproject.toml, and with the older ones; they change
# together.
DELTA_VERSION = "4.4.0"

# `java -version` says 1.8.0 for Java 8, 17.0.15 for Java 17 and 25 for the first Java 25.
JAVA_VERSION = re.compile(r'version "(?:1\.)?(\d+)')


def require(component: str, present: bool) -> None:  # noqa: FBT001 - reads as one sentence
    """Skip the test that needs ``component`` where it is not ``present``; with CI=true, fail."""
    if present:
        return
    if os.environ.get("CI") == "true":
        pytest.fail(f"{component} is missing, and with CI=true no test is skipped", pytrace=False)
    pytest.skip(f"{component} is missing")


def require_crate() -> None:
    """Skip the test where the crate in ``native/`` was not built; with CI=true, fail."""
    require("tailer.native._parquet, which `make native` builds,", native is not None)


class Component:
    """What tests run and pip does not bring with this project: fetched or built once a checkout,
    into ``.cache``, before the first test. See ``prepare.py``.

    ``home`` names its folder there, and changes with its version; ``missing`` names what of
    the machine it needs and has not, or is empty.
    """

    #: Those that could not be made, and why. A run tells its parts by the environment.
    failed: ClassVar[dict[str, str]] = json.loads(os.environ.get("TAILER_TESTS_WITHOUT", "{}"))

    def __init__(
        self,
        name: str,
        title: str,
        *,
        home: Callable[[], str],
        make: Callable[[Path], None],
        missing: Callable[[], str] = str,
    ) -> None:
        self.name = name
        self.title = title
        self._home = home
        self._make = make
        self._missing = missing

    def path(self) -> Path:
        """Where it is. A test that needs it is marked ``needs``, itself or by its fixtures. It does
        not wait for it: within its time it would be ended."""
        missing = self._missing()
        require(missing, present=not missing)
        if self.name in self.failed:
            require(f"{self.title} ({self.failed[self.name]})", present=False)
        home = CACHE / self._home()
        assert _ready(home).exists(), f"what uses {self.title} is marked needs({self.name!r})"
        return home

    def prepare(self) -> bool:
        """Make it if it is not there; whether it had to be made. Who comes later waits, and finds
        it made. Raises ``OSError`` or :class:`NotMade`."""
        if missing := self._missing():
            raise NotMade(f"{missing} is missing")
        home = CACHE / self._home()
        CACHE.mkdir(exist_ok=True)
        with (CACHE / f"{self.name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if _ready(home).exists():
                return False
            shutil.rmtree(home, ignore_errors=True)
            home.mkdir()
            self._make(home)
            _ready(home).touch()
        return True


class NotMade(Exception):
    """A component can't be had; says why in one line."""


def _ready(home: Path) -> Path:
    return home.with_name(f"{home.name}.ready")


def run_maker(
    command: Sequence[str | Path], *, cwd: Path | None = None, env: Mapping[str, str] | None = None
) -> None:
    """Run a program that fetches or builds, once more if it fails, as a network does; raises
    :class:`NotMade` with the last that it said."""
    for attempt in (1, 2):
        done = subprocess.run(
            [str(part) for part in command],
            cwd=cwd, env=env, check=False, text=True, timeout=FETCH_TIMEOUT_S,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        if done.returncode == 0:
            return
        if attempt == 2:
            said = next((line for line in reversed(done.stdout.splitlines()) if line.strip()), "")
            program = Path(command[0]).name
            raise NotMade(f"{program} ended with status {done.returncode}: {said.strip()[:300]}")


def run_maven(*arguments: str) -> None:
    """Maven, one at a time: two of them would write the same files of its repository."""
    if shutil.which("mvn") is None:
        raise NotMade("Maven is missing")
    with (CACHE / "maven.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        run_maker(["mvn", "-q", "-B", "-ntp", *arguments])


def make_environment(folder: Path, *wanted: str) -> Path:
    """A virtual environment with packages of its own; returns its Python."""
    run_maker([sys.executable, "-m", "venv", "--clear", folder])
    python = folder / "bin" / "python"
    run_maker([python, "-m", "pip", "install", "-q", "--disable-pip-version-check", *wanted])
    return python


def python_tag() -> str:
    """The Python that compiled packages are for, as in ``cp311``."""
    return f"cp{sys.version_info.major}{sys.version_info.minor}"


def free_port() -> int:
    """A port of 127.0.0.1 that nobody listens on: see :func:`free_ports`."""
    return free_ports(1)[0]


def free_ports(count: int) -> list[int]:
    """So many ports of 127.0.0.1 that nobody listens on, and that no other run of these tests on
    this machine has been given: each is a locked byte of one file, until this process ends.

    They lie below those that the system gives to connections: none of these takes one before it is
    used, nor while a server that was killed is away. Not by ``random``, whose numbers may be the
    same in every part of a run.
    """
    ports: list[int] = []
    with ExitStack() as held:
        while len(ports) < count:
            port = 20_000 + secrets.randbelow(12_000)
            with suppress(OSError):
                _reserve(port)
                held.enter_context(socket.socket()).bind(("127.0.0.1", port))
                ports.append(port)
    return ports


@cache
def _reservations() -> int:
    return os.open(f"/tmp/delta-tailer-ports-{os.getuid()}", os.O_RDWR | os.O_CREAT, 0o600)  # noqa: S108 - one for all runs of a user, whatever their TMPDIR


def _reserve(port: int) -> None:
    """Raises ``OSError`` where it is somebody's."""
    if port in _given:
        raise OSError(errno.EADDRINUSE, "was given before")
    fcntl.lockf(_reservations(), fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
    _given.add(port)


# A lock of one's own is given again.
_given: set[int] = set()


def java_major() -> int:
    """The major version of the Java that Spark would start; 0 where there is none."""
    java = shutil.which(find_java())
    return 0 if java is None else _major(java)


@cache
def _major(java: str) -> int:
    answer = subprocess.run([java, "-version"], capture_output=True, text=True, check=False)
    found = JAVA_VERSION.search(answer.stderr)
    return int(found[1]) if found else 0


def find_java() -> str:
    """The Java that Spark would start."""
    home = os.environ.get("JAVA_HOME")
    return str(Path(home, "bin", "java")) if home else "java"


def server_java(heap: str) -> list[str]:
    """The command of Java for a server of tests, which starts soon and stays small."""
    return [find_java(), f"-Xmx{heap}", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]


def no_java() -> str:
    """What of the machine is missing where it has no Java that Spark and Kafka run on."""
    return "" if java_major() >= 17 else "Java 17 or newer"


def _delta_package() -> str:
    line = ".".join(version("pyspark").split(".")[:2])
    return f"io.delta:delta-spark_{line}_2.13:{DELTA_VERSION}"


def _fetch_delta(home: Path) -> None:
    # Spark resolves its packages itself, before it runs the program; this one is empty.
    program = home / "nothing.py"
    program.touch()
    spark = find_spec("pyspark")
    assert spark is not None
    assert spark.origin is not None
    submit = Path(spark.origin).parent / "bin" / "spark-submit"
    confs = ["--conf", f"spark.jars.ivy={home / 'ivy'}", "--master", "local[1]"]
    environment = {
        **os.environ,
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        # Else it takes what Maven has in the user's home, half of which may just be fetched.
        "SPARK_SUBMIT_OPTS": f"-Duser.home={home}",
    }
    environment.pop("SPARK_HOME", None)
    run_maker([submit, "--packages", _delta_package(), *confs, program], cwd=home, env=environment)


DELTA = Component(
    "delta",
    "Delta's jars for Spark",
    home=lambda: _delta_package().replace(":", "-"),
    make=_fetch_delta,
    missing=no_java,
)


_SESSION = """
import sys
from pyspark import SparkContext
from pyspark.sql import SparkSession

settings = {"spark.ui.enabled": "false", "spark.driver.host": "127.0.0.1",
            "spark.driver.extraJavaOptions": sys.argv[2]}
session = SparkSession.builder.master("local[1]").config(map=settings).getOrCreate()
session.range(9).selectExpr("id", "id % 3 AS k").write.parquet(sys.argv[1])
rows = session.read.parquet(sys.argv[1])
rows.groupBy("k").count().join(rows, "k").orderBy("id").collect()
session.stop()
java = SparkContext._gateway.proc
SparkContext._gateway.shutdown()
java.stdin.close()
java.wait()
"""


def _spark_classes_home() -> str:
    spark = find_spec("pyspark")
    assert spark is not None
    assert spark.origin is not None
    (jar,) = (Path(spark.origin).parent / "jars").glob("spark-core_*.jar")
    # Java takes the archive of these files alone.
    key = f"{jar} {jar.stat().st_mtime_ns} {java_major()}"
    return f"spark-classes-{hashlib.sha256(key.encode()).hexdigest()[:16]}"


def _archive_spark_classes(home: Path) -> None:
    archiving = f"{QUICK_JAVA} -XX:ArchiveClassesAtExit={home / 'spark.jsa'}"
    program = home / "session.py"
    program.write_text(_SESSION)
    run_maker([sys.executable, program, home / "rows", archiving])


SPARK_CLASSES = Component(
    "spark-classes",
    "an archive of Spark's classes, with which Java starts sooner,",
    home=_spark_classes_home,
    make=_archive_spark_classes,
    missing=no_java,
)

#: For processes that are many and short-lived: no time for collectors and for the compiler that
#: optimises most.
QUICK_JAVA = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"


def quick_java() -> str:
    """The options of Spark's Java, with the archive of its classes where that was made."""
    archive = CACHE / _spark_classes_home() / "spark.jsa"
    return f"{QUICK_JAVA} -XX:SharedArchiveFile={archive}" if archive.exists() else QUICK_JAVA


def delta_jars() -> str:
    """Delta for the Spark that is installed, as ``spark.jars`` takes it."""
    return ",".join(str(jar) for jar in sorted((DELTA.path() / "ivy" / "jars").glob("*.jar")))


#: How many seconds PySpark's processes wait for each other; 15 are too few on a loaded machine.
SPARK_PATIENCE = {"SPARK_AUTH_SOCKET_TIMEOUT": "150"}


#: Test tables are small: more partitions only cost tasks, and to compile code for a query takes
#: longer than to run it without.
SMALL_TABLES = {
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
    "spark.databricks.delta.snapshotPartitions": "1",
    # Delta sets this once, at the first table mapped by ids, and asks for it from then on; what is
    # set in the session during a test is unset after it.
    "spark.sql.parquet.fieldId.read.enabled": "true",
}


def with_byte_code(folder: Path, python: Path | None = None) -> Path:
    """The script of docs/spark-details.md for ``PYSPARK_PYTHON``: Spark's processes of this Python
    have the byte code of the installed PySpark. Without it each compiles its archive again, a
    second of processor time; where a worker has ten seconds to start, a busy machine needs more."""
    python = python or Path(sys.executable)
    (packages,) = python.parent.parent.glob("lib/python*/site-packages")
    script = folder / "python"
    script.write_text(f'#!/bin/sh\nPYTHONPATH="{packages}:$PYTHONPATH" exec {python} "$@"\n')
    script.chmod(0o755)
    return script


def start_spark(
    folder: Path,
    python: str = sys.executable,
    *,
    small: bool = True,
    settings: Mapping[str, str] | None = None,
) -> SparkSession:
    """A local Spark with Delta, which keeps whatever it writes in ``folder``; its Python processes
    are begun by ``python``. ``small`` sets it up for the tables of tests; otherwise it is as a user
    has it, with the memory for benchmarks. ``settings`` are further ones.
    """
    from pyspark.sql import SparkSession

    os.environ.update(SPARK_PATIENCE)
    # Workers would otherwise take the first python3 of the PATH.
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = python
    builder = SparkSession.builder.appName("delta-tailer tests")
    for key, value in {**_settings(folder, small=small), **(settings or {})}.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session


def _settings(folder: Path, *, small: bool) -> dict[str, str]:
    delta = "org.apache.spark.sql.delta.catalog.DeltaCatalog"
    return {
        "spark.master": "local[2]",
        "spark.jars": delta_jars(),
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": delta,
        # Time zones of the machine must not reach what is compared.
        "spark.sql.session.timeZone": "UTC",
        "spark.driver.extraJavaOptions": f"-Duser.timezone=UTC -Dderby.system.home={folder} "
        + (quick_java() if small else ""),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        # Nothing is reachable from outside the machine, nor depends on its name.
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        **(SMALL_TABLES if small else {"spark.sql.shuffle.partitions": "4"}),
        "spark.driver.memory": "1g" if small else "3g",
    }


#: Builds in half the time, for programs whose speed nobody measures.
GO_QUICKLY = "-gcflags=all=-N -l -dwarf=false"
_GO_SMALL = "-gcflags=all=-dwarf=false"


def go_server(
    name: str, title: str, sources: Path, program: str, *, measured: bool = False
) -> Component:
    """A server that Go builds of a folder's ``main.go``, ``go.mod`` and ``go.sum``; optimized where
    benchmarks measure it."""

    def home() -> str:
        texts = b"".join((sources / n).read_bytes() for n in ("main.go", "go.mod", "go.sum"))
        return f"{name}-server-{hashlib.sha256(texts).hexdigest()[:16]}"

    def build(folder: Path) -> None:
        how = _GO_SMALL if measured else GO_QUICKLY
        run_maker(
            ["go", "build", "-trimpath", "-ldflags=-s -w", how, "-o", folder / program, "."],
            cwd=sources,
            env={**os.environ, "CGO_ENABLED": "0"},
        )

    missing = lambda: "" if shutil.which("go") else "Go"  # noqa: E731
    return Component(name, title, home=home, make=build, missing=missing)


def npm_package(name: str, title: str, version: str) -> Component:
    """A package of npm's, with what it depends on, in ``node_modules`` of its folder."""

    def fetch(folder: Path) -> None:
        # No package needs to run anything of its own to be installed.
        quiet = ("--no-audit", "--no-fund", "--ignore-scripts")
        run_maker(["npm", "install", *quiet, "--prefix", folder, f"{name}@{version}"])

    missing = lambda: "" if shutil.which("npm") and shutil.which("node") else "Node with npm"  # noqa: E731
    return Component(name, title, home=lambda: f"{name}-{version}", make=fetch, missing=missing)
