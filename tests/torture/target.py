"""What all targets have."""

from __future__ import annotations

import json
import random
import uuid
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from tests.torture.events import Rename, Seen
from tests.torture.servers import Peer, Servers


@dataclass(frozen=True)
class Setting:
    """What a target is made for: the round's folder, sink, format, and a source of chance."""

    sink: str
    format: str
    folder: Path
    chance: random.Random


class Target(ABC):
    """Where a round's feed writes to."""

    #: The server that it needs, of :meth:`~tests.torture.servers.Servers.peer`.
    server: ClassVar[str] = ""
    #: Whether it is a file in the round's folder.
    local: ClassVar[bool] = False
    proof: str = "mirror"
    fences: bool = True

    def __init__(self, setting: Setting, servers: Servers) -> None:
        self.setting = setting
        self.name = f"t{uuid.uuid4().hex}"
        self.peer_of_round: Peer | None = servers.peer(self.server) if self.server else None

    @property
    def peer(self) -> Peer:
        """The server."""
        assert self.peer_of_round is not None
        return self.peer_of_round

    def through(self, address: str) -> str:
        """The server's address by the link."""
        return address.replace(f":{self.peer.server.port}", f":{self.peer.link.port}")

    def section(self) -> str:
        """The lines of the sink in a configuration."""
        options = {"type": self.setting.sink, **self.options()}
        return "\n".join(f"{name} = {_toml(value)}" for name, value in options.items())

    @abstractmethod
    def options(self) -> dict[str, Any]:
        """The options of the sink."""

    @abstractmethod
    def seen(self, rename: Rename) -> Seen:
        """What it has; an AssertionError tells which promise is broken."""


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return f"{{ {', '.join(f'{k} = {_toml(v)}' for k, v in value.items())} }}"
    return json.dumps(value)
