"""A real Kafka broker for tests: one KRaft node on free ports, started in about two seconds.

The jars come from Maven, once a checkout; with them are kept a formatted data folder,
copied for each broker, and a class archive that halves its start. A broker dies with the process
that started it, also if that is killed.
"""

from __future__ import annotations

import base64
import ctypes
import shutil
import signal
import subprocess
import tempfile
import time
import uuid
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Self

from tests.support.components import Component, find_java, free_ports, java_major, no_java
from tests.support.maven import copy_jars
from tests.support.servers import standing_still

#: The newest that resolves whole from Maven Central, and that kafka-python says it supports.
KAFKA_VERSION = "4.3.1"
LOG4J_VERSION = "2.25.5"

#: The one that is upgraded from.
OLDER_VERSION = "4.1.1"
LOGGING = """Configuration:
  Appenders:
    Console: {name: STDOUT, PatternLayout: {pattern: "%d{ISO8601} %p %m (%c)%n"}}
  Loggers:
    Root: {level: INFO, AppenderRef: {ref: STDOUT}}
"""
STARTED = b"Kafka Server started"
PR_SET_PDEATHSIG = 1
START_S = 200.0


def _make_home(home: Path, version: str) -> None:
    """The folder with Kafka's jars, template and class archive."""
    artifacts = (
        f"org.apache.kafka:kafka_2.13:{version}",
        f"org.apache.logging.log4j:log4j-slf4j-impl:{LOG4J_VERSION}",
        f"org.apache.kafka:kafka-tools:{version}",
    )
    (home / "log4j2.yaml").write_text(LOGGING)
    copy_jars(home / "lib", artifacts)
    # The template was formatted and never used; the archive holds what a broker has loaded.
    first = Broker(home=home, jvm=[f"-XX:ArchiveClassesAtExit={home / 'broker.jsa'}"])
    try:
        first.format()
        shutil.copytree(first.folder / "data", home / "template")
        first.start()
        first.stop()
    finally:
        first.close()


def _component(name: str, title: str, version: str) -> Component:
    return Component(
        name,
        title,
        home=lambda: f"kafka-broker-{version}-java{java_major()}",
        make=lambda home: _make_home(home, version),
        missing=no_java,
    )


KAFKA = _component("kafka", "Kafka's broker, by Maven,", KAFKA_VERSION)
OLDER_KAFKA = _component("older-kafka", f"Kafka's broker {OLDER_VERSION}, by Maven,", OLDER_VERSION)


def kafka_uuid() -> str:
    """An id as Kafka writes them."""
    while True:
        text = base64.urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()
        if not text.startswith("-"):  # the tools would take it for an option
            return text


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


class Broker:
    """One broker, which is its own controller. ``listeners`` maps names to security protocols.

    It keeps its data over :meth:`kill` or :meth:`stop` and :meth:`start`, until it is closed; with
    another ``home`` before it starts again, it is another version on the same data.
    """

    def __init__(
        self,
        *,
        settings: Mapping[str, str] | None = None,
        listeners: Mapping[str, str] | None = None,
        format_arguments: Sequence[str] = (),
        heap: str = "512m",
        jvm: Sequence[str] | None = None,
        home: Path | None = None,
        node: int = 1,
        cluster_id: str | None = None,
    ) -> None:
        self.home = home or KAFKA.path()
        self.folder = Path(tempfile.mkdtemp(prefix="kafka-"))
        self.settings = dict(settings or {})
        self.listeners = dict(listeners or {"PLAINTEXT": "PLAINTEXT"})
        self.format_arguments = list(format_arguments)
        self._jvm = None if jvm is None else list(jvm)
        self.heap = heap
        self.process: subprocess.Popen[bytes] | None = None
        self.log = self.folder / "broker.log"
        self.node = node
        #: The controllers that vote; all of them have to be known before one starts.
        self.voters: list[str] = []
        self._cluster_id = cluster_id or kafka_uuid()
        *self._ports, self._controller_port = free_ports(len(self.listeners) + 1)
        self.voter = f"{node}@127.0.0.1:{self._controller_port}"
        self._formatted = False

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def jvm(self) -> list[str]:
        """The options of Java, those of a quick start where none are given."""
        archive = self.home / "broker.jsa"
        quick = [f"-XX:SharedArchiveFile={archive}"] if archive.exists() else []
        return ["-XX:TieredStopAtLevel=1", *quick] if self._jvm is None else self._jvm

    @property
    def bootstrap(self) -> str:
        """The address of the first listener."""
        return f"127.0.0.1:{self._ports[0]}"

    def address(self, listener: str) -> str:
        """The address of a listener by its name."""
        return f"127.0.0.1:{self._ports[list(self.listeners).index(listener)]}"

    def start(self) -> None:
        """Start it, again if it ran before; returns when it serves."""
        self.launch()
        self.wait_until_it_serves()

    def launch(self) -> None:
        """Start it without waiting: one of several serves only when most of them run."""
        properties = self._write_properties()
        if not self._formatted:
            self.format()
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                self._java("kafka.Kafka", str(properties)),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                preexec_fn=_die_with_parent,  # noqa: PLW1509 - the child only sets a flag
            )

    def wait_until_it_serves(self) -> None:
        """Wait for what :meth:`launch` has started."""
        assert self.process is not None
        give_up = time.monotonic() + START_S
        while STARTED not in self.log.read_bytes():
            if self.process.poll() is not None or time.monotonic() > give_up:
                self.kill()
                raise RuntimeError(f"the broker did not start:\n{self.log.read_text()[-4000:]}")
            time.sleep(0.02)

    def format(self) -> None:
        """Make the data folder: from the template, if nothing special is asked for."""
        properties = self._write_properties()
        data, template = self.folder / "data", self.home / "template"
        if template.exists() and not self.format_arguments:
            shutil.copytree(template, data)
            (data / "meta.properties").write_text(
                f"version=1\ncluster.id={self._cluster_id}\nnode.id={self.node}\n"
                f"directory.id={kafka_uuid()}\n"
            )
        else:
            command = ["kafka.tools.StorageTool", "format", "-t", self._cluster_id]
            command += ["-c", str(properties), *self.format_arguments]
            subprocess.run(self._java(*command), check=True, capture_output=True, timeout=START_S)
        self._formatted = True

    def kill(self) -> None:
        """End it as a power cut would."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """End it as its operator would."""
        self._end(signal.SIGTERM)

    def still(self) -> AbstractContextManager[None]:
        """Have it stand still within the block."""
        assert self.process is not None
        return standing_still(self.process)

    def close(self) -> None:
        """End it and remove its data."""
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _end(self, number: signal.Signals) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(number)
            self.process.wait(START_S)

    def _java(self, *arguments: str) -> list[str]:
        memory = ["-XX:+UseSerialGC", f"-Xmx{self.heap}"]
        logging = f"-Dlog4j2.configurationFile={self.home / 'log4j2.yaml'}"
        return [find_java(), *memory, *self.jvm, logging, "-cp", f"{self.home}/lib/*", *arguments]

    def _write_properties(self) -> Path:
        local = [f"{name}://127.0.0.1:{port}" for name, port in self._named_ports()]
        controller = f"CONTROLLER://127.0.0.1:{self._controller_port}"
        protocols = [f"{name}:{protocol}" for name, protocol in self.listeners.items()]
        properties = {
            "process.roles": "broker,controller",
            "node.id": str(self.node),
            # Static, or the port would be part of the formatted folder.
            "controller.quorum.voters": ",".join(self.voters or [self.voter]),
            "listeners": ",".join([*local, controller]),
            "advertised.listeners": ",".join([*local, controller]),
            "controller.listener.names": "CONTROLLER",
            "inter.broker.listener.name": next(iter(self.listeners)),
            "listener.security.protocol.map": ",".join([*protocols, "CONTROLLER:PLAINTEXT"]),
            "log.dirs": str(self.folder / "data"),
            "offsets.topic.replication.factor": "1",
            "offsets.topic.num.partitions": "1",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "transaction.state.log.num.partitions": "1",
            "share.coordinator.state.topic.replication.factor": "1",
            "share.coordinator.state.topic.min.isr": "1",
            "group.initial.rebalance.delay.ms": "0",
            "auto.create.topics.enable": "false",
            # A killed broker waits for its own old registration to end.
            "broker.session.timeout.ms": "2000",
            "broker.heartbeat.interval.ms": "500",
            # An open transaction of a killed client is ended as soon as it is over.
            "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
            # The commits of test tables have any age.
            "log.retention.ms": "-1",
            "num.network.threads": "2",
            "num.io.threads": "4",
            "background.threads": "2",
            "log.cleaner.dedupe.buffer.size": "2097152",
            "log.cleaner.threads": "1",
            "message.max.bytes": "8388608",
            **self.settings,
        }
        path = self.folder / "server.properties"
        path.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))
        return path

    def _named_ports(self) -> list[tuple[str, int]]:
        return list(zip(self.listeners, self._ports, strict=True))
