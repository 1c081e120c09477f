"""Real servers that take messages."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from tests.support.components import free_port, require
from tests.support.servers import Server

PASSWORD = "pa55word"


class _Broker(Server):
    """A server whose program is called like its Debian package."""

    def __init__(self) -> None:
        found = shutil.which(self.name)
        require(f"{self.name} (Debian: {self.name})", found is not None)
        super().__init__()
        self.program = str(found)


class Redis(_Broker):
    """A Redis server that appends each command to a file, and whose user is `tailer`."""

    name = "redis-server"

    def start(self) -> None:
        user = f"tailer on >{PASSWORD} ~* &* +@all"
        options = {"port": self.port, "bind": "127.0.0.1", "dir": self.folder, "appendonly": "yes",
                   "save": '""', "user": user}  # fmt: skip
        file = self.folder / "redis.conf"
        file.write_text("".join(f"{name} {value}\n" for name, value in options.items()))
        self.launch(self.program, file)

    def url(self, user: str = "tailer", password: str = PASSWORD) -> str:
        """Where it is."""
        return f"redis://{user}:{password}@127.0.0.1:{self.port}/0"


class Nats(_Broker):
    """A NATS server with JetStream, and two users: `tailer`, and `reader` that may not publish."""

    name = "nats-server"

    def start(self) -> None:
        file = self.folder / "nats.conf"
        file.write_text(f"""
            listen: "127.0.0.1:{self.port}"
            jetstream {{ store_dir: "{self.folder}/data" }}
            authorization {{ users: [
                {{ user: tailer, password: "{PASSWORD}" }}
                {{ user: reader, password: "{PASSWORD}", permissions: {{ publish: "none" }} }}
            ] }}
        """)
        self.launch(self.program, "-c", file)

    def url(self, user: str = "tailer", password: str = PASSWORD) -> str:
        """Where it is."""
        return f"nats://{user}:{password}@127.0.0.1:{self.port}"


class RabbitMq(_Broker):
    """A RabbitMQ server whose user is `tailer`, with the name service of its own."""

    name = "rabbitmq-server"
    #: The script itself: the one in PATH changes the user.
    script = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")

    def __init__(self) -> None:
        super().__init__()
        self.program = str(self.script) if self.script.exists() else self.program
        self.names_port, self.node_port = free_port(), free_port()
        self.names: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        settings = {"listeners.tcp.local": f"127.0.0.1:{self.port}", "default_user": "tailer",
                    "default_pass": PASSWORD, "log.console": "true", "log.file": "false",
                    "disk_free_limit.absolute": "50MB", "max_message_size": 1_000_000}  # fmt: skip
        file = self.folder / "rabbitmq.conf"
        file.write_text("".join(f"{name} = {value}\n" for name, value in settings.items()))
        (self.folder / "plugins").write_text("[].")
        # With RABBITMQ_ALLOW_INPUT, the script is replaced by the server, which ends with us.
        # One scheduler that does not wait busily: by itself it takes a processor.
        calm = "+S 1:1 +sbwt none +sbwtdcpu none +sbwtdio none"
        more = f"{calm} -noinput -kernel inet_dist_use_interface {{127,0,0,1}}"
        variables = {
            "ERL_EPMD_PORT": self.names_port, "HOME": self.folder,
            "RABBITMQ_NODENAME": f"tailer-{self.port}@localhost",
            "RABBITMQ_DIST_PORT": self.node_port, "RABBITMQ_CONF_ENV_FILE": "/dev/null",
            "RABBITMQ_MNESIA_BASE": self.folder, "RABBITMQ_LOG_BASE": self.folder,
            "RABBITMQ_CONFIG_FILE": file, "RABBITMQ_ENABLED_PLUGINS_FILE": self.folder / "plugins",
            "RABBITMQ_PID_FILE": self.folder / "pid", "RABBITMQ_ALLOW_INPUT": "1",
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": more,
        }  # fmt: skip
        if self.names is None:
            command = ("epmd", "-port", str(self.names_port), "-address", "127.0.0.1")
            self.names = subprocess.Popen(self._command(*command))
        given = [f"{name}={value}" for name, value in variables.items()]
        self.launch("env", *given, self.program)

    def __exit__(self, *reason: object) -> None:
        super().__exit__(*reason)
        if self.names is not None:
            self.names.kill()
            self.names.wait()

    def url(self, user: str = "tailer", password: str = PASSWORD) -> str:
        """Where it is."""
        return f"amqp://{user}:{password}@127.0.0.1:{self.port}/"
