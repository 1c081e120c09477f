"""An encoder of variants, written from the format alone, that can write one value in many ways."""

from __future__ import annotations

import datetime as dt
import json
import math
import struct
import uuid
from dataclasses import dataclass, field
from decimal import Decimal
from random import Random
from typing import Any

EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
INTEGERS = {1: 3, 2: 4, 4: 5, 8: 6}
DECIMALS = {4: 8, 8: 9, 16: 10}


@dataclass(frozen=True)
class Float:
    """A 32-bit float."""

    value: float


@dataclass(frozen=True)
class Nanos:
    """Nanoseconds since the epoch: an instant, or without a zone."""

    value: int
    zoned: bool


@dataclass
class Style:
    """How a value is written where the format leaves a choice; at random, if it has ``random``."""

    random: Random | None = None
    names: list[bytes] = field(default_factory=list)

    def pick(self, least: int, choices: tuple[int, ...]) -> int:
        """One of the widths that are enough: the smallest, or any."""
        enough = [n for n in choices if n >= least]
        return self.random.choice(enough) if self.random else enough[0]

    def flip(self) -> bool:
        """Whether to do it the unusual way."""
        return self.random is not None and self.random.random() < 0.5

    def number(self, key: str) -> int:
        """The key's number in the dictionary, which may also hold what nobody needs."""
        name = key.encode()
        if self.flip():
            self.names.append(f"unused {len(self.names)}".encode())
        if name not in self.names or self.flip():  # a name may stand there twice
            self.names.append(name)
        return len(self.names) - 1 - self.names[::-1].index(name)

    def metadata(self) -> bytes:
        """The dictionary of all keys so far."""
        ends = [sum(map(len, self.names[:i])) for i in range(len(self.names) + 1)]
        width = self.pick(bytes_of(max(ends[-1], len(self.names))), (1, 2, 3, 4))
        lists = b"".join(n.to_bytes(width, "little") for n in (len(self.names), *ends))
        return bytes([1 | (width - 1) << 6]) + lists + b"".join(self.names)


def bytes_of(number: int) -> int:
    return max(1, (number.bit_length() + 7) // 8)


def encoded(value: Any, random: Random | None = None) -> tuple[bytes, bytes]:
    """``value`` and ``metadata`` of a variant; with ``random``, in any of its encodings."""
    style = Style(random)
    data = node(value, style)
    return data, style.metadata()


def node(value: Any, style: Style) -> bytes:
    if isinstance(value, dict):
        items = list(value.items())
        if style.random:
            style.random.shuffle(items)
        fields = [(style.number(key), key.encode(), node(v, style)) for key, v in items]
        return container(2, fields, style)
    if isinstance(value, list):
        return container(3, [(0, b"", node(v, style)) for v in value], style)
    return scalar(value, style)


def container(basic: int, children: list[tuple[int, bytes, bytes]], style: Style) -> bytes:
    """Children's bytes in the order given, an object's lists in the order of its keys."""
    offsets, data = [], b""
    for _, _, child in children:
        offsets.append(len(data))
        data += child
    order = list(range(len(children)))
    id_width = 0
    if basic == 2:
        order.sort(key=lambda i: children[i][1])
        id_width = style.pick(max((bytes_of(c[0]) for c in children), default=1), (1, 2, 3, 4))
    offset_width = style.pick(bytes_of(len(data)), (1, 2, 3, 4))
    large = len(children) > 255 or style.flip()
    header = offset_width - 1
    header |= (id_width - 1) << 2 | large << 4 if basic == 2 else large << 2
    out = bytes([header << 2 | basic]) + len(children).to_bytes(4 if large else 1, "little")
    out += b"".join(children[i][0].to_bytes(id_width, "little") for i in order if id_width)
    ends = [*(offsets[i] for i in order), len(data)]
    return out + b"".join(n.to_bytes(offset_width, "little") for n in ends) + data


def exact(value: int | Decimal, style: Style) -> bytes:
    """A number as an integer or as a decimal, of any width and scale that hold it."""
    sign, digits, exponent = Decimal(value).as_tuple()
    assert isinstance(exponent, int)
    unscaled, scale = int("".join(map(str, digits))) * (-1 if sign else 1), -exponent
    if isinstance(value, int) and not style.flip():
        widths = tuple(INTEGERS)
        width = style.pick(1 + (value if value >= 0 else ~value).bit_length() // 8, widths)
        return bytes([INTEGERS[width] << 2]) + value.to_bytes(width, "little", signed=True)
    if style.random and len(str(abs(unscaled))) < 30 and scale < 30:
        more = style.random.randint(0, 8)
        unscaled, scale = unscaled * 10**more, scale + more
    longest = max(scale, len(str(abs(unscaled))))
    width = style.pick(4 if longest <= 9 else 8 if longest <= 18 else 16, tuple(DECIMALS))
    data = unscaled.to_bytes(width, "little", signed=True)
    return bytes([DECIMALS[width] << 2, scale]) + data


def micros(value: dt.datetime) -> int:
    return (value - (EPOCH if value.tzinfo else EPOCH.replace(tzinfo=None))) // dt.timedelta(
        microseconds=1
    )


def scalar(value: Any, style: Style) -> bytes:
    if value is None or isinstance(value, bool):
        return {None: b"\x00", True: b"\x04", False: b"\x08"}[value]
    match value:
        case int() | Decimal():
            return exact(value, style)
        case float():
            return bytes([7 << 2]) + struct.pack("<d", value)
        case Float():
            return bytes([14 << 2]) + struct.pack("<f", value.value)
        case str():
            data = value.encode()
            if len(data) < 64 and not style.flip():
                return bytes([len(data) << 2 | 1]) + data
            return bytes([16 << 2]) + len(data).to_bytes(4, "little") + data
        case bytes():
            return bytes([15 << 2]) + len(value).to_bytes(4, "little") + value
        case dt.datetime():
            kind = 12 if value.tzinfo else 13
            nanos = style.flip() and 1700 < value.year < 2250
            number = micros(value) * (1000 if nanos else 1)
            return bytes([(kind + 6 if nanos else kind) << 2]) + struct.pack("<q", number)
        case Nanos():
            return bytes([(18 if value.zoned else 19) << 2]) + struct.pack("<q", value.value)
        case dt.date():
            return bytes([11 << 2]) + struct.pack("<i", (value - EPOCH.date()).days)
        case dt.time():
            whole = (value.hour * 60 + value.minute) * 60 + value.second
            return bytes([17 << 2]) + struct.pack("<q", whole * 10**6 + value.microsecond)
        case uuid.UUID():
            return bytes([20 << 2]) + value.bytes
    raise TypeError(value)


def as_json(value: Any) -> Any:
    """What ``json.loads`` makes of the value's JSON, with numbers that are not integers exact."""
    match value:
        case dict():
            return {key: as_json(v) for key, v in value.items()}
        case list():
            return [as_json(v) for v in value]
        case Decimal():
            return value
        case float():
            if math.isnan(value):
                return "NaN"
            if math.isinf(value):
                return "Infinity" if value > 0 else "-Infinity"
            return Decimal(repr(value))
    return value


def parsed(text: str) -> Any:
    return json.loads(text, parse_float=Decimal, parse_constant=refuse)


def refuse(text: str) -> None:
    raise ValueError(f"{text} is no JSON")
