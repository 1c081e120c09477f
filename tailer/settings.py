"""Settings: options declared once, from which everything else about them is derived.

A :class:`Setting` describes an option: its kind, default, bounds or choices, unit, one sentence of
help, its names in other tools, and whether it is secret. A :class:`SettingTable` holds the settings
of one component: it checks what was configured, fills in defaults and words the errors. The
documentation's tables of options are made from the same declarations (:func:`options_table`).

A dataclass declares them as its fields (:mod:`tailer.setting_fields`), a sink and a format as their
attribute ``settings``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, Literal

from msgspec import Struct

from tailer.errors import ConfigError, meant
from tailer.secrets import keep_secrets
from tailer.secrets.urls import UrlError

__all__ = [
    "OWN_PREFIX_SETTING",
    "REQUIRED",
    "WRITER_TIMEZONE_SETTING",
    "Kind",
    "Setting",
    "SettingTable",
    "options_table",
    "own_prefix",
    "zone_name",
]

#: The default of a required option.
REQUIRED: Final = ...

Kind = Literal["text", "whole", "number", "flag", "texts", "table", "any"]

_NAMES: dict[Kind, str] = {
    "text": "a string", "whole": "a whole number", "number": "a number", "flag": "true or false",
    "texts": "a list of strings", "table": "a table", "any": "a value",
}  # fmt: skip
_TYPES: dict[Kind, Any] = {"text": str, "flag": bool, "texts": list, "table": dict, "any": object}
_WORDS = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
_PREFIX = r"[A-Za-z_][A-Za-z0-9_]{0,39}"
_SIZE = r"(\d+)\s*([kmgt]?)b?"
_UNITS = ((1024**3, "GiB"), (1024**2, "MiB"))
#: The most options that a message lists behind the one that was meant.
_LISTED_MAX = 12
#: Names of entries, in a table with secrets, that have none.
_PLAIN = r"(?i)region|endpoint|url|host|bucket|accept|content|agent|allow|timeout|retr|style|type"
#: A URL that says nothing but where a server is, which messages name.
_SERVER = r"(?i)[a-z0-9+]+://[^/@?#]*/?"
#: The bound of all numbers: 64-bit integers end there, and it excludes infinity.
_NUMBERS_END = 2**63


class Setting(Struct, frozen=True):
    """One option. ``help`` is one sentence for the documentation.

    ``default`` is :data:`REQUIRED`, or the value of an option that is not given; ``unset`` says
    what that means if the default itself does not. An empty text is refused where the option is
    required, and is None where the default is None.

    Numbers are finite and greater than 0; ``least`` and ``most`` are other bounds, inclusive, and
    ``also`` are numbers outside of them with a special meaning. ``unit`` is what a number counts.

    ``form`` describes the allowed values where kind and bounds do not, and ``parse`` converts the
    given value, or raises ``ValueError``. ``elsewhere`` are other tools' names for it. A ``secret``
    is not shown in errors, and its value is taken out of all that is said later. An ``advanced``
    option is one that few ever need: the documentation lists it apart, after the others.
    """

    kind: Kind
    default: Any
    help: str
    unit: str = ""
    choices: tuple[str, ...] = ()
    least: float | None = None
    most: float | None = None
    also: tuple[int, ...] = ()
    form: str = ""
    parse: Callable[[Any], Any] | None = None
    elsewhere: tuple[str, ...] = ()
    secret: bool = False
    unset: str = ""
    advanced: bool = False

    def allowed(self) -> str:
        """Describe the allowed values, for errors and the documentation."""
        if self.form:
            return self.form
        if self.choices:
            return f"one of {', '.join(self.choices)}"
        if self.kind not in ("whole", "number"):
            return _NAMES[self.kind]
        of = f" of {self.unit}" if self.unit else ""
        also = "".join(f", or {number}" for number in self.also)
        return f"{_NAMES[self.kind]}{of}, {self._format_bounds()}{also}"

    def value(self, raw: Any, *, text: bool = False) -> Any:
        """Convert a given value. With ``text``, a string may be the text of any kind, as on command
        lines. Raises ``ValueError`` for a value that is not allowed."""
        value = self._from_text(raw) if text and isinstance(raw, str) else raw
        if not self._is_allowed(value) or (value == "" and self.default is REQUIRED):
            raise ValueError(value)
        if self.parse is not None:
            return self.parse(value)
        if self.kind == "number":
            return float(value)
        return None if value == "" and self.default is None else value

    def _from_text(self, text: str) -> Any:
        match self.kind:
            case "whole" if self.unit and (size := re.fullmatch(_SIZE, text.strip().lower())):
                return int(size[1]) * 1024 ** " kmgt".index(size[2] or " ")
            case "whole":
                return int(text)
            case "number":
                return float(text)
            case "flag" if text.lower() in _WORDS:
                return _WORDS[text.lower()]
            case "texts" if text.lstrip().startswith("["):
                return json.loads(text)
            case "texts":
                return [name.strip() for name in text.split(",") if name.strip()]
        return text.lower() if self.choices else text

    def _is_allowed(self, value: Any) -> bool:
        if self.kind in ("whole", "number"):
            number = int if self.kind == "whole" else (int, float)
            if not isinstance(value, number) or isinstance(value, bool):
                return False
            return value in self.also or self._is_within(value)
        if self.choices and value not in self.choices:
            return False
        if not isinstance(value, _TYPES[self.kind]):
            return False
        return self.kind != "texts" or all(isinstance(item, str) for item in value)

    def _is_within(self, number: float) -> bool:
        most = _NUMBERS_END - 1 if self.most is None else self.most
        return (number > 0 if self.least is None else number >= self.least) and number <= most

    def _format_bounds(self) -> str:
        if self.least is None:
            return "greater than 0"
        if self.most is not None:
            return f"from {self._format_figure(self.least)} to {self._format_figure(self.most)}"
        return f"{self._format_figure(self.least)} or greater"

    def _format_figure(self, number: float) -> str:
        """Format a number for people: round sizes are shown in MiB."""
        figure = str(number).removesuffix(".0")
        if self.unit != "bytes":
            return figure
        round_in = (
            f" ({number // size:g} {name})" for size, name in _UNITS if number and not number % size
        )
        return figure + next(round_in, "")

    def shown_default(self) -> str:
        """Return the default in the documentation's form."""
        if self.unset:
            return self.unset
        match self.default:
            case None | "" | [] | () | {}:
                return ""
            case bool():
                return str(self.default).lower()
            case int() | float():
                return self._format_figure(self.default)
            case str():
                return f"`{self.default}`"
        return "required"


class SettingTable(Struct, frozen=True):
    """The settings of one component, which errors call ``owner``: "sink 'kafka'".

    ``text``: every value may be given as text. ``spelling`` converts a given name for the look-up.
    ``renames``: other spellings and other tools' names are accepted; otherwise the error says what
    the option is called here. ``answers`` has the names that mean nothing here, and what to do
    instead. ``place`` precedes a name in errors, if the place in a file says more than the
    owner.
    """

    owner: str
    settings: Mapping[str, Setting]
    text: bool = False
    spelling: Callable[[str], str] = str
    renames: bool = False
    answers: Mapping[str, str] = {}
    place: str = ""

    def take(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return the value of every setting. Raises :class:`ConfigError`, in one sentence, for all
        options that are unknown, else for the first one that is missing or wrong."""
        ours = self.rename(options)
        if unknown := [name for name in ours if name not in self.settings]:
            raise self._make_unknown_error(*unknown)
        return {name: self.value(name, ours) for name in self.settings}

    def rename(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return the given options under our names; unknown names stay. Raises :class:`ConfigError`
        for a name in ``answers``, and for an option that is given twice."""
        by_spelling = self._other_names() if self.renames else {}
        renamed: dict[str, Any] = {}
        first: dict[str, str] = {}
        for name, value in options.items():
            plain = self.spelling(name)
            if plain in self.answers and name not in self.settings:
                raise self.wrong(name, f"is not known: {self.answers[plain]}")
            ours = name if name in self.settings else by_spelling.get(plain, name)
            if ours in renamed:
                raise self.wrong(name, f"is the same as {first[ours]!r}; leave one out")
            renamed[ours], first[ours] = value, name
        return renamed

    def value(self, name: str, options: Mapping[str, Any]) -> Any:
        """Return the value of one setting from options under our names."""
        setting = self.settings[name]
        value = options.get(name, setting.default)
        if value is REQUIRED:
            raise self.wrong(name, f"is missing, and must be {setting.allowed()}")
        if value is None and name not in options:
            return None
        if setting.secret:
            keep_secrets(_find_secrets(value))
        try:
            return setting.value(value, text=self.text)
        except UrlError as e:
            raise self.wrong(name, f"must be {setting.allowed()}: {e}") from None
        except ValueError:
            raise self._make_value_error(name, value) from None

    def wrong(self, name: str, what: str) -> ConfigError:
        """Return the error of one option: which it is, and ``what`` is wrong with it."""
        named = f"{self.place}{name}" if self.place else f"option {name!r} of {self.owner}"
        return ConfigError(f"{named} {what}")

    def _make_value_error(self, name: str, value: Any) -> ConfigError:
        setting = self.settings[name]
        shown = "" if setting.secret else f"is {value!r}, and "
        return self.wrong(name, f"{shown}must be {setting.allowed()}")

    def _make_unknown_error(self, name: str, *others: str) -> ConfigError:
        ours = self._other_names().get(self.spelling(name))
        hint = f" (here it is {ours!r})" if ours else meant(name, self.settings)
        listed = f"; known are {', '.join(sorted(self.settings))}"
        if hint and len(self.settings) > _LISTED_MAX:
            listed = ""  # a long list hides what was meant
        nor = f", nor is {' or '.join(map(repr, others))}" if others else ""
        return self.wrong(name, f"is not known{hint}{nor}{listed}")

    def _other_names(self) -> dict[str, str]:
        """Return our names by their other names."""
        names = {self.spelling(name): name for name in self.settings}
        for name, setting in self.settings.items():
            names.update(dict.fromkeys(setting.elsewhere, name))
        return names


def _find_secrets(value: Any) -> Iterator[str]:
    """Yield the secrets in the value of an option: of a header with a scheme of authentication,
    also what follows the scheme, and of a table all but what has a plain name. A URL without user,
    path and query has none."""
    if isinstance(value, str):
        if re.fullmatch(_SERVER, value):
            return
        yield value
        scheme, _, rest = value.partition(" ")
        if scheme.isalpha():
            yield rest
    elif isinstance(value, Mapping):
        for name, each in value.items():
            if not re.search(_PLAIN, str(name)):
                yield from _find_secrets(each)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _find_secrets(each)


def options_table(settings: Mapping[str, Setting]) -> Iterator[str]:
    """Yield the lines of a Markdown table: name, allowed values, default and meaning per option.

    A second table, after the first, has the advanced options.
    """
    plain = {name: setting for name, setting in settings.items() if not setting.advanced}
    advanced = {name: setting for name, setting in settings.items() if setting.advanced}
    yield from _format_table(plain)
    if advanced:
        yield from ("", "Advanced:", "", *_format_table(advanced))


def _format_table(settings: Mapping[str, Setting]) -> Iterator[str]:
    yield "| option | allowed | default | meaning |"
    yield "| --- | --- | --- | --- |"
    for name, setting in settings.items():
        cells = (f"`{name}`", setting.allowed(), setting.shown_default(), setting.help)
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def zone_name(text: str) -> str:
    """Check the name of a time zone, as a ``parse``."""
    if text == "UTC":
        return text
    from zoneinfo import ZoneInfo

    try:
        ZoneInfo(text)
    except (OSError, KeyError) as e:  # KeyError: no zone has that name
        raise ValueError(text) from e
    return text


def own_prefix(text: str) -> str:
    """Check what the names of an output's own columns begin with, as a ``parse``: some targets
    would not take other texts as part of a name."""
    if not re.fullmatch(_PREFIX, text):
        raise ValueError(text)
    return text


#: The options that several components share.
OWN_PREFIX_SETTING = Setting(
    "text", "_", "Prefix of the columns that the sink adds, such as `_event_id`. Choose another "
    "one if the table has a column of such a name.",
    form="up to 40 letters, digits and `_`, not beginning with a digit", parse=own_prefix,
    advanced=True,
)  # fmt: skip
WRITER_TIMEZONE_SETTING = Setting(
    "text", "UTC", "Time zone of partition timestamps without one.",
    form="an IANA time zone name, such as Europe/Berlin", parse=zone_name, advanced=True,
)  # fmt: skip
