"""Spark's session as the daemon's feeds use it: started when first needed, one job for each task.

A feed decodes several groups of files at the same time, each as a job of one task. So rows come as
soon as one task is done, and no more of them wait here than those of the tasks that run.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import pickle
import re
import sys
import traceback
import uuid
import warnings
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from threading import Event, Thread
from typing import TypeVar

import anyio
import anyio.to_thread
from py4j.protocol import Py4JNetworkError  # type: ignore[import-untyped]
from pyspark import SparkContext
from pyspark.sql import SparkSession

from tailer.errors import ConfigError, TailerError, TransientError

T = TypeVar("T")

#: Spark's messages when the session has ended, or its Java has.
_LOST = ("SparkContext was shut down", "stopped SparkContext", "JAVA_GATEWAY_EXITED")
#: How often Java may end in a row while Spark starts: it may have been killed, for memory say, and
#: what is configured wrongly ends it each time.
_STARTS_MAX = 3
#: What somebody must change before a job can succeed, by what Spark's message says. (A program that
#: exists may also fail to start: for lack of memory, say.)
_REMEDIES = {
    r"ModuleNotFoundError": "the executors' Python must have this package: install it there, or "
    "let PYSPARK_PYTHON name a Python that has it",
    r"spark\.(driver\.maxResultSize|rpc\.message\.maxSize)": "lower --partition-bytes-max, or "
    "raise that setting by --conf",
    r"Cannot run program .* error=(2|13)\b": "PYSPARK_PYTHON must name a Python that the executors "
    "have",
    r"java\.lang\.OutOfMemoryError": "lower --partition-bytes-max, or raise spark.driver.memory or "
    "spark.executor.memory by --conf",
}
#: What Python says in a worker that has lost its task or its Java. All else that it says is what
#: the task's own code has raised.
_CUT_OFF = re.compile(r"(EOF|Memory|OS|\w*(Connection|BrokenPipe|Timeout)\w*)Error\b")
#: The most jobs at a time, of all feeds.
_JOBS_MAX = 32
#: How long Java is waited for when a job is cancelled, and at the end. It may hang.
_CANCEL_S = 5.0
_STOP_S = 10.0


@dataclass(frozen=True, slots=True)
class ClusterOptions:
    """How feeds use a cluster. A task decodes about ``partition_bytes_max`` bytes of data files.
    Up to ``driver_bytes_max`` bytes are no job: the driver decodes them. ``conf`` are settings of
    Spark."""

    partition_bytes_max: int = 16 * 1024 * 1024
    driver_bytes_max: int = 16 * 1024 * 1024
    master: str | None = None
    conf: Mapping[str, str] = field(default_factory=dict)


class SparkCluster:
    """The session, once a feed needs it."""

    def __init__(self, options: ClusterOptions) -> None:
        self.options = options
        self._lock = anyio.Lock()
        self._starting: Future[SparkSession] | None = None
        self._session: SparkSession | None = None
        self._starts_lost = 0
        #: The session whose workers have loaded what they need.
        self._warm: SparkSession | None = None
        #: Threads that wait for jobs are none of those in which rows are decoded and written.
        self._waiting = anyio.CapacityLimiter(_JOBS_MAX)
        #: Those that end something do not wait for the ones that wait for Java.
        self._ending = anyio.CapacityLimiter(math.inf)

    async def ensure_session(self) -> SparkSession:
        """Return the session, started by the first call. A caller that is cancelled leaves the
        start to the next one.

        Raises :class:`ConfigError` if Spark can't be started, :class:`TransientError` if its Java
        has ended meanwhile, the first times.
        """
        async with self._lock:
            if self._session is None:
                self._starting = self._starting or _start_in_thread(self.options)
                try:
                    self._session = await asyncio.wrap_future(self._starting)
                    self._starting, self._starts_lost = None, 0
                except Exception as e:
                    self._starting = None
                    # PySpark's frames hold the pipe to a JVM that is gone. It is closed now: at
                    # its end, Python would warn of it.
                    with warnings.catch_warnings():
                        warnings.simplefilter("ignore", ResourceWarning)
                        traceback.clear_frames(e.__traceback__)
                    said = f"Spark does not start ({_extract_cause(str(e))})"
                    if _is_session_lost(e):
                        self._starts_lost += 1
                        _forget_session()
                        if self._starts_lost < _STARTS_MAX:
                            raise TransientError(f"{said}; its Java may have been killed") from e
                    raise ConfigError(
                        f"{said}; check --master and --conf, that there is Java 17 or newer, and "
                        "what Spark has printed"
                    ) from e
            return self._session

    async def ask_session(self, question: Callable[[SparkSession], T]) -> T:
        """Ask the session in a thread, because Java may hang. Raises what :meth:`run_task` does."""
        session = await self.ensure_session()
        async with self._note_loss(session):
            return await anyio.to_thread.run_sync(
                question, session, abandon_on_cancel=True, limiter=self._waiting
            )

    @asynccontextmanager
    async def _note_loss(self, session: SparkSession) -> AsyncIterator[None]:
        """Convert the errors of the block, in which Java is asked. If the session is lost, the next
        try starts another one."""
        try:
            yield
        except TailerError:
            raise
        except Exception as e:
            if not _is_session_lost(e):
                raise convert_error(e) from e
            async with self._lock:
                if self._session is session:
                    self._session = None
                    await anyio.to_thread.run_sync(_stop_session, session)
            raise TransientError(f"Spark's session is gone ({_extract_cause(str(e))})") from e

    async def aclose(self) -> bool:
        """End the session, if it was started. Returns False if its Java does not answer: a thread
        waits for it then, and would keep this process. So does one in which Spark still starts."""
        if self._session is None:
            # Its Java, unless that has started this process.
            java = getattr(SparkContext._gateway, "proc", None)  # noqa: SLF001
            if self._starting is not None and java is not None:
                java.terminate()
            return self._starting is None
        stop = partial(_stop_session, self._session)
        with anyio.move_on_after(_STOP_S) as waiting:
            await anyio.to_thread.run_sync(stop, abandon_on_cancel=True, limiter=self._ending)
        if waiting.cancelled_caught:
            logging.getLogger("tailer").warning(
                "Spark's Java has not answered for %g s and is left behind", _STOP_S
            )
        return not waiting.cancelled_caught

    async def warm_up(self) -> int:
        """Return how many tasks the cluster runs at a time, once its workers have loaded what
        decodes: that takes seconds, in which the driver does not wait for them."""
        tasks = await self.ask_session(_count_tasks)
        session = await self.ensure_session()
        if self._warm is not session:
            await self.run_task("warm-up", _load_decoder, tasks)
            self._warm = session
        return tasks

    async def run_task(
        self, name: str, work: Callable[[], Iterator[bytes]], tasks: int = 1
    ) -> list[bytes]:
        """Run ``work`` in a task, and return what it yields. ``name`` is for Spark's own pages.
        With more ``tasks``, each of them runs it.

        On cancellation, the job is cancelled too. Raises :class:`TransientError` if the cluster has
        failed in a way that may pass.
        """
        session = await self.ensure_session()
        # Its own one: to cancel this job, and no other of this feed or of one with a like name.
        tag = f"tailer-{re.sub(r'[^A-Za-z0-9_-]', '-', name)}-{uuid.uuid4().hex}"
        gone = Event()
        job = partial(_run_job, session.sparkContext, tag, work, tasks, gone)
        try:
            async with self._note_loss(session):
                return await anyio.to_thread.run_sync(
                    job, abandon_on_cancel=True, limiter=self._waiting
                )
        except anyio.get_cancelled_exc_class():
            gone.set()
            # In a thread: while Java hangs, the feeds, the lease and the HTTP answers go on.
            cancel = partial(_cancel_jobs, session.sparkContext, tag)
            with anyio.move_on_after(_CANCEL_S, shield=True):
                await anyio.to_thread.run_sync(cancel, abandon_on_cancel=True, limiter=self._ending)
            raise


def _start_in_thread(options: ClusterOptions) -> Future[SparkSession]:
    """Begin to start the session; whoever waits for it may go, and the thread keeps no process."""
    started: Future[SparkSession] = Future()
    started.set_running_or_notify_cancel()

    def start() -> None:
        try:
            started.set_result(_start_session(options))
        except BaseException as e:  # noqa: BLE001  # raised where it is waited for
            started.set_exception(e)

    Thread(target=start, name="Spark's start", daemon=True).start()
    return started


def _load_decoder() -> Iterator[bytes]:
    """Load what a task of a feed needs, for a worker that will run some."""
    import tailer.spark.pipeline.group_task  # noqa: F401  # this is all that it does

    yield b""


def _start_session(options: ClusterOptions) -> SparkSession:
    """Return the session of ``spark-submit`` if there is one, else a new one."""
    # The workers must be able to import this package, and the first python3 on the PATH may not.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName("tailer")
    if options.master is not None:
        builder = builder.master(options.master)
    # The daemon's log is on the terminal already.
    for key, value in {"spark.ui.showConsoleProgress": "false", **options.conf}.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    context = session.sparkContext
    logging.getLogger("tailer").info(
        "Spark %s runs as %s on %s", context.version, context.applicationId, context.master
    )
    return session


def _count_tasks(session: SparkSession) -> int:
    """Return how many tasks the cluster runs at a time."""
    return session.sparkContext.defaultParallelism


def _stop_session(session: SparkSession) -> None:
    """Stop a session, whose Java may be gone: then the next one needs another."""
    try:
        session.stop()
    except Exception:  # noqa: BLE001  # whatever is left of it
        _forget_session()


def _forget_session() -> None:
    """Let the next start be one of a new Java: PySpark would give a session again that is gone."""
    SparkSession._instantiatedSession = None  # noqa: SLF001
    SparkContext._gateway = SparkContext._jvm = None  # noqa: SLF001
    SparkContext._active_spark_context = None  # noqa: SLF001


def _is_session_lost(error: Exception) -> bool:
    return isinstance(error, OSError | Py4JNetworkError) or any(
        sign in str(error) for sign in _LOST
    )


def _run_job(
    context: SparkContext, tag: str, work: Callable[[], Iterator[bytes]], tasks: int, gone: Event
) -> list[bytes]:
    """Run a job, unless nobody waits for it any more."""
    rows = context.parallelize(range(tasks), tasks).mapPartitions(lambda _: work())
    with _tag_jobs(context, tag):
        return [] if gone.is_set() else rows.collect()


def _cancel_jobs(context: SparkContext, tag: str) -> None:
    with suppress(Exception):  # the session may be gone
        context.cancelJobsWithTag(tag)


@contextmanager
def _tag_jobs(context: SparkContext, tag: str) -> Iterator[None]:
    """Tag the jobs that this thread starts within the block."""
    context.addJobTag(tag)
    try:
        yield
    finally:
        with suppress(Exception):  # the session may be gone
            context.removeJobTag(tag)


def convert_error(error: BaseException) -> TailerError:
    """Return an error of the cluster as one of ours. It may pass, unless somebody must act first:
    Java says of one cut connection what the thread says that meets it first."""
    if isinstance(error, UnboundLocalError) and error.__context__ is not None:
        error = error.__context__  # PySpark closes a connection that it has not opened
    text = str(error)
    cause = f"Spark's job has failed: {_extract_cause(text)}"
    remedies = [remedy for sign, remedy in _REMEDIES.items() if re.search(sign, text)]
    if remedies:
        return TailerError(f"{cause}; {remedies[0]}")
    of_task = "Traceback" in text and not _CUT_OFF.match(_extract_cause(text))
    bug = type(error).__module__ == "builtins" and not isinstance(error, OSError | MemoryError)
    of_driver = bug or isinstance(error, pickle.PicklingError)
    return TailerError(cause) if of_task or of_driver else TransientError(cause)


def _extract_cause(text: str) -> str:
    """Extract the cause from Spark's text of an error."""
    # The last line of a Python traceback has the error; of Java's, the line after Py4J's own; in
    # other texts, the first line.
    causes = re.findall(r"^\s*([A-Za-z_][\w.]*(?:Error|Exception)\b.*)$", text, re.MULTILINE)
    lines = text.splitlines() or ["it did not say why"]
    if "Traceback" in text and causes:
        return str(causes[-1])
    return next((line[2:] for line in lines if line.startswith(": ")), lines[0])
