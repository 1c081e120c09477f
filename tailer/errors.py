"""Every error of the project, in families by who must act.

* :class:`TransientError`: the machine. The feed retries from its saved offset.
* :class:`TableError`: the table's operator. The feed stops and names table, version and file.
* :class:`SinkRejected`: the sink's operator. The feed stops; its offset has not moved. Of its two
  kinds :class:`RowsRefused` is about the rows, which may be parked, and :class:`TargetRefused` is
  about the target, for which no row is parked.
* :class:`ConfigError`: the author of the configuration or the command line.

A message is one sentence: what was found, where, and what to do. A client repeats a request a few
times; beyond that, only the feed retries.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress

from tailer.secrets import hide_secrets

__all__ = [
    "ConfigError",
    "CorruptLog",
    "CorruptRow",
    "DataLoss",
    "FileGone",
    "OffsetError",
    "OffsetHeld",
    "RowsRefused",
    "SchemaChanged",
    "SinkRejected",
    "TableError",
    "TableReplaced",
    "TailerError",
    "TargetRefused",
    "TransientError",
    "UnsupportedTable",
    "cannot_listen",
    "closest",
    "first_error",
    "healing",
    "is_shortage",
    "may_heal",
    "meant",
    "mistakes",
    "no_room",
    "out_of_reach",
    "placing",
    "printable",
    "spilling",
    "unexpected",
    "ungrouping",
    "unreadable",
]


#: A sentence has one or two hundred characters. Names in it may come from anyone, of any length.
_CHARACTERS_MAX = 4000


def printable(text: str, most: int = _CHARACTERS_MAX) -> str:
    """Return a text that is safe for a terminal or a line of a log, whatever names are in it.

    Secrets that are known are taken out. Characters that a terminal interprets or does not show are
    escaped: control characters, line separators, marks that change the direction of writing. A text
    longer than ``most`` loses its middle.
    """
    text = hide_secrets(text)
    if len(text) > most:
        head, tail = text[: most * 2 // 3], text[len(text) - most // 3 :]
        text = f"{head}[... {len(text) - len(head) - len(tail)} characters ...]{tail}"
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


class TailerError(Exception):
    """Root of all errors that this project raises on purpose. ``str()`` is fit for a terminal.

    ``family`` is the label under which the error is counted in ``tailer_errors_total``.
    """

    family = "internal"

    def __str__(self) -> str:
        return printable(super().__str__())

    def __reduce__(self) -> tuple[object, ...]:
        """Let every error travel between processes, whatever it is made with."""
        return _remake_error, (type(self), self.args, self.__dict__)


def _remake_error(
    kind: type[TailerError], args: tuple[object, ...], state: dict[str, object]
) -> TailerError:
    error = kind.__new__(kind)
    error.args = args
    error.__dict__.update(state)
    return error


class TransientError(TailerError):
    """An error that may pass by itself: a time-out, a 5xx answer, an incomplete file.

    ``retry_after_s`` is the delay in seconds that the other side requested, if any.
    """

    family = "transient"

    def __init__(self, what: str, retry_after_s: float | None = None) -> None:
        super().__init__(what)
        self.retry_after_s = retry_after_s


class TableError(TailerError):
    """The table can't be followed further until somebody acts.

    The facts are attributes; ``str()`` makes the sentence. ``table`` may be filled in later, by
    code that knows it: pure code does not.
    """

    family = "table"

    def __init__(
        self,
        what: str,
        *,
        table: str | None = None,
        version: int | None = None,
        path: str | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(what)
        self.what = what
        self.table = table
        self.version = version
        self.path = path
        self.hint = hint

    def at(
        self, *, table: str | None = None, version: int | None = None, path: str | None = None
    ) -> TableError:
        """Return this error with the facts filled in that were unknown where it was raised."""
        self.table = self.table or table
        self.version = self.version if self.version is not None else version
        self.path = self.path or path
        return self

    def __str__(self) -> str:
        where = [self.table] if self.table else []
        if self.version is not None:
            where.append(f"version {self.version}")
        if self.path:
            where.append(self.path)
        sentence = ", ".join(where) + ": " + self.what if where else self.what
        return printable(f"{sentence}; {self.hint}" if self.hint else sentence)


class UnsupportedTable(TableError):
    """The table requires what this project does not support (protocol, feature, format)."""

    family = "unsupported"


class CorruptLog(TableError):
    """A file of the log, a deletion vector or a data file violates the protocol."""

    family = "corrupt"


class CorruptRow(TableError):
    """A value of a row can't be read or cast in the schema of its version."""

    family = "corrupt"


class DataLoss(TableError):
    """A version or a file between the offset and the end of the log is gone."""

    family = "data_loss"


class FileGone(DataLoss):
    """A data, cdc or deletion vector file of a version is gone. ``file`` is the path, as in the
    log, of the data or cdc file that can't be read without it; ``rows`` how many changes it had,
    None if unknown."""

    file = ""
    rows: int | None = None


class SchemaChanged(TableError):
    """The table's schema changed, and the feed must not continue by itself."""

    family = "schema"


class TableReplaced(TableError):
    """The table under this path is another one now, or an older copy of itself."""

    family = "replaced"


class OffsetError(TableError):
    """The saved offset is damaged, of another table, or held by another process."""

    family = "offset"


class OffsetHeld(OffsetError):
    """Another owner, ``who``, holds the offset of a feed, and the caller would not wait."""

    def __init__(self, who: str, feed: str, *, path: str | None = None) -> None:
        hint = "only one may use it at a time: wait for its end, or stop it"
        super().__init__(f"{who} holds the offset of feed {feed!r}", path=path, hint=hint)


class SinkRejected(TailerError):
    """The sink refused a batch for good. The offset still names the refused batch.

    By itself it says neither whether a row is the cause nor which: where refused rows are parked,
    one is only if the sink takes other rows of the batch. A sink that knows raises one of the
    kinds below.
    """

    family = "sink"


class RowsRefused(SinkRejected):
    """The target refuses a row of the batch for what is in it: a value that is too long, a
    constraint. The same row is refused again, and other rows are not."""


class TargetRefused(SinkRejected):
    """The target refuses the sink, whatever is in the rows: a table that is missing, a right that
    was revoked. No row is ever parked for it."""


class ConfigError(TailerError):
    """A mistake in the configuration file or on the command line.

    ``also`` are the other mistakes that were found with it.
    """

    family = "config"

    def __init__(self, what: str, also: Iterable[ConfigError] = ()) -> None:
        super().__init__(what)
        self.also: list[ConfigError] = [more for one in also for more in (one, *one.also)]


#: Causes that prevent listening on an address for a while: a process that still has the port, an
#: interface that is not up yet.
_TAKEN = (errno.EADDRINUSE, errno.EADDRNOTAVAIL)


def cannot_listen(place: str, address: tuple[str, int], e: OSError) -> TailerError:
    """Return the error of an address that can't be listened on. ``place`` names its key in the
    configuration, which is wrong only if no later attempt can succeed."""
    import socket  # on demand: it takes milliseconds to load

    unknown = isinstance(e, socket.gaierror)
    reason = os.strerror(e.errno) if e.errno and not unknown else e.strerror or e
    what = f"{place}: {address[0]}:{address[1]} can't be served ({reason})"
    if unknown:
        what += "; name an address of this machine"
        return (TransientError if e.errno == socket.EAI_AGAIN else ConfigError)(what)
    if e.errno in _TAKEN or may_heal(e):
        return TransientError(f"{what}; start again when it is free, or name another address")
    return ConfigError(f"{what}; name another address")


def unreadable(what: str, path: str | os.PathLike[str], e: OSError) -> ConfigError:
    """Return the error of a file that a user named and that can't be read; ``what`` says which."""
    remedy = "check its path"
    if isinstance(e, FileNotFoundError):
        folder, name = os.path.split(os.path.expanduser(path))  # noqa: PTH111  # pathlib is slower
        with suppress(OSError):
            remedy += meant(name, os.listdir(folder or "."))  # noqa: PTH208
    elif isinstance(e, IsADirectoryError):
        remedy = "it is a folder: name a file"
    elif isinstance(e, PermissionError):
        remedy = "let this user read it"
    return ConfigError(f"{what} can't be read ({e.strerror}); {remedy}")


def first_error(group: BaseException) -> BaseException:
    """Return the one error that ended a group of tasks."""
    while isinstance(group, BaseExceptionGroup):
        group = group.exceptions[0]
    return group


@contextmanager
def ungrouping() -> Iterator[None]:
    """Raise the one error that ended a group of tasks in the block as itself."""
    try:
        yield
    except BaseExceptionGroup as group:
        raise first_error(group) from None


@contextmanager
def mistakes() -> Iterator[Callable[[], AbstractContextManager[None]]]:
    """Collect the mistakes of a block, so that one does not hide the next.

    Provides a context manager for each part of it, which keeps a :class:`ConfigError`; at the end
    the first one is raised, with the others in ``also``.
    """
    found: list[ConfigError] = []

    @contextmanager
    def part() -> Iterator[None]:
        try:
            yield
        except ConfigError as e:
            found.append(e)

    yield part
    if found:
        first, *others = found
        raise ConfigError(first.args[0], [*first.also, *others]) from first


def meant(name: str, known: Iterable[str]) -> str:
    """Return a suggestion for an unknown name, for a message: the known name that was meant, if
    any."""
    close = closest(name, known)
    return f" (did you mean {close!r}?)" if close is not None else ""


def closest(name: str, known: Iterable[str], likeness: float = 0.6) -> str | None:
    """Return the known name that is most like a name: at least by this share, from 0 to 1."""
    from difflib import get_close_matches  # on demand: most processes end well

    close = get_close_matches(name, list(known), 1, likeness)
    return close[0] if close else None


#: The operating system's errors for a shortage or a fault that may have passed at the next try,
#: and what to do about them.
_HEALING = {
    errno.EMFILE: "let this process open more files: LimitNOFILE of its unit, or `ulimit -n`",
    errno.ENFILE: "let the system open more files: sysctl fs.file-max",
    errno.ENOSPC: "make room there",
    errno.EDQUOT: "make room there",
    errno.ENOMEM: "give the machine more memory",
    errno.ENOBUFS: "give the machine more memory",
    errno.EIO: "check the disk or the mount",
    errno.EREMOTEIO: "check the disk or the mount",
    errno.ESTALE: "look after the mount",
    errno.ENOTCONN: "look after the mount",
    errno.EHOSTDOWN: "look after the mount",
    errno.EHOSTUNREACH: "look after the network",
    errno.ENETDOWN: "look after the network",
    errno.ENETUNREACH: "look after the network",
    errno.ETIMEDOUT: "check the mount or the network",
    errno.EINTR: None,
    errno.EAGAIN: None,
    errno.EBUSY: None,
}
#: What Python, and pyarrow, raise instead of an OSError with EAGAIN.
_NO_THREAD = ("can't start new thread", "Unknown error: Failed to launch worker thread")


def may_heal(e: BaseException) -> bool:
    """Return whether an error of the operating system may pass: a lack of descriptors, threads or
    room on a disk, an unavailable disk or mount. Every OSError is judged by this."""
    if isinstance(e, OSError):
        # TLS's own errors have other numbers.
        return e.errno in _HEALING and type(e).__module__ != "ssl"
    return str(e).startswith(_NO_THREAD)


def is_shortage(e: BaseException) -> bool:
    """Return whether the process has no memory left, or gets no further thread."""
    return isinstance(e, MemoryError) or (not isinstance(e, OSError) and may_heal(e))


def out_of_reach(what: str, e: BaseException) -> TransientError:
    """Return the error for what :func:`may_heal`, or a lack of memory: what failed, why, and the
    remedy."""
    if isinstance(e, MemoryError):
        reason = f": {e}" if str(e) else ""
        return TransientError(
            f"{what}, because the memory of this process does not suffice{reason}; give it more, "
            "or lower batch_bytes_max and diff_memory_bytes_max"
        )
    if not isinstance(e, OSError) or e.errno is None:
        return TransientError(f"{what} ({e}); let this process have more threads: `ulimit -u`")
    # pyarrow puts the whole story into the message.
    reason, remedy = os.strerror(e.errno), _HEALING.get(e.errno)
    return TransientError(f"{what} ({reason})" + (f"; {remedy}" if remedy else ""))


@contextmanager
def placing(where: str) -> Iterator[None]:
    """Raise a :class:`ConfigError` of the block as one that begins with ``where`` it is."""
    try:
        yield
    except ConfigError as e:
        raise ConfigError(f"{where}: {e}") from e


@contextmanager
def healing(what: str) -> Iterator[None]:
    """Raise what :func:`may_heal`, and a lack of memory, as a :class:`TransientError`, which says
    ``what`` could not be done."""
    try:
        yield
    except Exception as e:
        if not (may_heal(e) or is_shortage(e)):
            raise
        raise out_of_reach(what, e) from e


@contextmanager
def spilling(folder: str | None) -> Iterator[None]:
    """Guard the making and writing of temporary files in a folder; None: the system's own.

    Raises :class:`TransientError` for an OSError: a full disk may have room again later.
    """
    try:
        yield
    except OSError as e:
        if e.errno in (errno.EMFILE, errno.ENFILE):
            raise out_of_reach("temporary files can't be made", e) from e
        raise no_room(folder, e.strerror or str(e)) from e


def no_room(folder: str | None, reason: str) -> TransientError:
    """Return the error of a temporary file that could not be written, for that reason."""
    where = folder or "the system's temporary folder"
    return TransientError(
        f"temporary files can't be written to {where} ({reason}); make room there, or set "
        "spill_folder (for the whole process: TMPDIR) to another folder"
    )


def unexpected(error: Exception) -> TailerError:
    """Return a bug's exception as an error of ours; its traceback is for the log."""
    return TailerError(
        f"unexpected error {type(error).__name__}: {error}; this is a bug, and the log has the "
        "traceback"
    )
