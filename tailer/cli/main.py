"""The command line: arguments in, an exit status out.

Status 0: done. 1: the table or the sink refused. 2: an error in usage or configuration. An error
is one sentence on standard error; a traceback only with ``--debug``.
"""

from __future__ import annotations

import argparse
import errno
import os
import re
import sys
import traceback
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NoReturn

import tailer
from tailer.cli.commands import Command, run_command
from tailer.cli.foreign import refuse_foreign_owner
from tailer.errors import ConfigError, TailerError, first_error, is_shortage, meant, out_of_reach
from tailer.process.signals import end_process, install_receiver
from tailer.secrets import hide_secrets
from tailer.settings import OWN_PREFIX_SETTING, WRITER_TIMEZONE_SETTING, Setting

EXIT_REFUSED = 1
EXIT_USAGE = 2


def _make_argument_type(setting: Setting) -> Callable[[str], Any]:
    """Return a parser of an argument, with the bounds of a setting."""

    def parse(text: str) -> Any:
        try:
            return setting.value(text, text=True)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not {setting.allowed()}") from None

    return parse


def _parse_moment(text: str) -> str:
    """Check a version or a time."""
    from tailer.log.times import is_moment

    if not is_moment(text):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a version or a time, such as 12 or '2026-01-31 12:00:00'"
        )
    return text


_parse_zone = _make_argument_type(WRITER_TIMEZONE_SETTING)
_parse_own_prefix = _make_argument_type(OWN_PREFIX_SETTING)
_whole = _make_argument_type(Setting("whole", None, "", least=0))
_mebibytes = _make_argument_type(Setting("whole", None, "", least=1024 * 1024))
_seconds = _make_argument_type(Setting("number", None, "", unit="seconds"))


def _add_read_options(p: argparse.ArgumentParser) -> None:
    p.add_argument(
        "--change-source", choices=("auto", "cdf", "derived"), default="auto",
        help="read change data files, derive changes from data files, or choose by version",
    )  # fmt: skip
    p.add_argument(
        "--key", nargs="+", default=[], metavar="COL",
        help="columns by which derived deletes and inserts are paired into updates",
    )  # fmt: skip
    _add_selection_options(p)
    p.add_argument("--with-ids", action="store_true", help="add _event_id, _origin and _row_id")
    p.add_argument(
        "--own-prefix", type=_parse_own_prefix, default="_", metavar="TEXT",
        help="prefix of the added columns (default _)",
    )  # fmt: skip
    p.add_argument(
        "--writer-timezone", type=_parse_zone, default="UTC", metavar="ZONE",
        help="time zone of partition timestamps without one (default UTC)",
    )  # fmt: skip
    _add_page_checksums(p)


def _add_selection_options(p: argparse.ArgumentParser) -> None:
    p.add_argument("--where", metavar="CONDITION", help="only the rows that meet this condition")
    p.add_argument(
        "--select", metavar="LIST",
        help="only these columns: names, or expressions as in 'id, price * n as total'",
    )  # fmt: skip


def _add_page_checksums(p: argparse.ArgumentParser) -> None:
    p.add_argument(
        "--no-page-checksums", dest="page_checksums", action="store_false",
        help="do not verify the checksums of data files' pages",
    )  # fmt: skip


def _add_table(p: argparse.ArgumentParser) -> None:
    p.add_argument(
        "table",
        metavar="TABLE",
        help="a path, an address (s3://, az://, gs://, uc://) or profile.share#share.schema.table",
    )
    p.add_argument(
        "--store-option", action="append", default=[], metavar="KEY=VALUE", dest="store_options",
        help="how the table is reached, such as endpoint_url=http://host; may be repeated",
    )  # fmt: skip


def _add_verify_options(p: argparse.ArgumentParser) -> None:
    _add_table(p)
    p.add_argument(
        "feed", nargs="?", metavar="FEED",
        help="compare the copy that this feed keeps with its table; TABLE is then CONFIG.toml",
    )  # fmt: skip
    p.add_argument(
        "--repair", action="store_true",
        help="with FEED: write the rows that differ, and no others, also while the feed runs",
    )  # fmt: skip
    p.add_argument(
        "--dry-run", action="store_true", help="with --repair: only say what would be written"
    )
    _add_range(p, "the first version, or a time in UTC; default: the earliest")
    _add_read_options(p)


def _add_tail_options(p: argparse.ArgumentParser) -> None:
    _add_table(p)
    p.add_argument(
        "--from", dest="start", default="latest", metavar="WHERE",
        help="latest (default), earliest, snapshot, a version or a time (in UTC, unless it says "
        "another zone); inclusive",
    )  # fmt: skip
    p.add_argument(
        "--to", dest="last", type=_whole, metavar="VERSION", help="end after this version"
    )
    p.add_argument(
        "--with-notices", action="store_true", help="also print notices, such as schema changes"
    )
    _add_read_options(p)


def _add_range(p: argparse.ArgumentParser, first: str, *, required: bool = False) -> None:
    """Add --from and --to, with Spark's words for them."""
    ends = (
        ("--from", "start", first, required),
        ("--to", "end", "the last version, or a time in UTC; default: the newest", False),
    )
    for name, at, said, needed in ends:
        group = p.add_mutually_exclusive_group(required=needed)
        group.add_argument(name, dest=at, type=_parse_moment, metavar="WHERE", help=said)
        for word in ("version", "timestamp"):
            spark = f"--{at}ing-{word}"
            group.add_argument(spark, dest=at, type=_parse_moment, help=argparse.SUPPRESS)


def _add_read_command_options(p: argparse.ArgumentParser) -> None:
    _add_table(p)
    _add_range(p, "the first version, or a time in UTC", required=True)
    _add_read_options(p)
    p.add_argument("--output", required=True, metavar="FILE", help=".arrow, .parquet, .jsonl or -")


def _add_config(p: argparse.ArgumentParser) -> None:
    p.add_argument("config", metavar="CONFIG.toml")


def _parse_until(text: str) -> Any:
    return text if text == "now" else _whole(text)


def _add_run_options(p: argparse.ArgumentParser) -> None:
    _add_config(p)
    p.add_argument(
        "--once", action="store_true", help="end when all feeds are at their newest version"
    )
    p.add_argument(
        "--until", type=_parse_until, metavar="now|VERSION",
        help="with --once: the last version; default now, the newest one at the start",
    )  # fmt: skip
    p.add_argument(
        "--give-up-after", dest="patience_s", type=_seconds, metavar="S",
        help="with --once: fail a feed after so many seconds of temporary errors (default 300)",
    )  # fmt: skip
    _add_json(p)


def _add_check_options(p: argparse.ArgumentParser) -> None:
    _add_config(p)
    _add_json(p)


def _add_preview_options(p: argparse.ArgumentParser) -> None:
    _add_config(p)
    p.add_argument("feed", metavar="FEED")
    _add_range(p, "the first version, or as for read", required=True)
    _add_json(p)


def _add_json(p: argparse.ArgumentParser) -> None:
    p.add_argument("--json", action="store_true", help="one JSON object a line")


def _add_init_options(p: argparse.ArgumentParser) -> None:
    _add_table(p)
    p.add_argument("--sink", metavar="TYPE", help="see `tailer sinks`; asked if it is left out")
    p.add_argument("--output", default="tailer.toml", metavar="FILE", help="default: tailer.toml")


def _add_completion_options(p: argparse.ArgumentParser) -> None:
    p.add_argument("shell", choices=("bash", "zsh", "tcsh"))


def _add_version_options(p: argparse.ArgumentParser) -> None:
    p.add_argument("--verbose", action="store_true", help="what a report of a problem needs")


def _add_snapshot_options(p: argparse.ArgumentParser) -> None:
    _add_selection_options(p)
    _add_table(p)
    at = p.add_mutually_exclusive_group()
    at.add_argument(
        "--to", dest="at", type=_parse_moment, metavar="WHERE",
        help="a version, or a time in UTC; default: the newest version",
    )  # fmt: skip
    for name in ("--version", "--timestamp"):
        at.add_argument(name, dest="at", type=_parse_moment, help=argparse.SUPPRESS)
    p.add_argument("--output", metavar="FILE", help="write the rows to .arrow, .parquet, .jsonl, -")
    p.add_argument("--writer-timezone", type=_parse_zone, default="UTC", metavar="ZONE")
    _add_page_checksums(p)


def _add_history_options(p: argparse.ArgumentParser) -> None:
    _add_table(p)
    p.add_argument("--limit", type=_whole, metavar="N")
    _add_json(p)


def _add_sinks_options(p: argparse.ArgumentParser) -> None:
    p.add_argument("type", nargs="?", metavar="TYPE", help="only the sink of this type")
    _add_json(p)


def _add_shares_options(p: argparse.ArgumentParser) -> None:
    p.add_argument("profile", metavar="PROFILE", help="the provider's profile file")
    p.add_argument("--share", metavar="NAME", help="only this share")
    p.add_argument("--schema", metavar="NAME", help="only this schema of --share")
    _add_json(p)
    p.add_argument("--ca-file", metavar="FILE", help="PEM file of the trusted authorities")
    p.add_argument("--ca-bundle", dest="ca_file", help=argparse.SUPPRESS)  # as it was called
    p.add_argument("--allow-http", action="store_true", help="allow a token without TLS")


def _add_share_options(p: argparse.ArgumentParser) -> None:
    p.usage = (
        "tailer share CONFIG.toml\n"
        "       tailer share token new CONFIG.toml RECIPIENT [--expires-in 90d]\n"
        "       tailer share token revoke CONFIG.toml RECIPIENT [--id ID]\n"
        "       tailer share token list CONFIG.toml [RECIPIENT]"
    )
    p.add_argument("words", nargs="+", metavar="CONFIG.toml | token ACTION CONFIG.toml RECIPIENT")
    p.add_argument("--expires-in", default="90d", metavar="TIME", help="90d, 12h, ... or never")
    p.add_argument("--id", metavar="ID", help="with revoke: this token alone")


def _add_offsets_options(p: argparse.ArgumentParser) -> None:
    p.add_argument("action", choices=("show", "set", "rewind", "reset", "export", "import"))
    p.add_argument("config", metavar="CONFIG.toml")
    p.add_argument("feed", metavar="FEED")
    p.add_argument(
        "--from", dest="start", metavar="WHERE",
        help="with set: the next version to read, or as for tail",
    )  # fmt: skip
    p.add_argument(
        "--index", type=_whole, default=0, metavar="I", help="with set: the next change in it"
    )
    p.add_argument(
        "--to", type=_parse_moment, metavar="WHERE",
        help="with rewind: the version, or time, after which all is delivered again",
    )  # fmt: skip
    p.add_argument(
        "--checkpoint", metavar="FOLDER", help="with import: the checkpoint of a Spark query"
    )
    p.add_argument(
        "--read-change-feed", action="store_true",
        help="with import: Spark's Delta stream reads with readChangeFeed",
    )  # fmt: skip
    p.add_argument("--json", action="store_true", help="with show: offset and orders as JSON")


def _add_parked_options(p: argparse.ArgumentParser) -> None:
    p.add_argument("action", choices=("list", "show", "replay", "drop"))
    p.add_argument("config", metavar="CONFIG.toml")
    p.add_argument("feed", metavar="FEED")
    p.add_argument("id", nargs="*", metavar="ID", help="these rows; default: all that are parked")


def _add_spark_options(p: argparse.ArgumentParser) -> None:
    p.add_argument("config", metavar="CONFIG.toml")
    p.add_argument("--master", metavar="URL", help="default: that of spark-submit, or local[*]")
    p.add_argument(
        "--conf", action="append", default=[], metavar="KEY=VALUE", help="a setting of Spark"
    )
    p.add_argument("--available-now", action="store_true", help="read what there is, then end")
    p.add_argument(
        "--partition-bytes-max", type=_mebibytes, default=16 * 1024 * 1024, metavar="N",
        help="bytes of data files in one task",
    )  # fmt: skip
    p.add_argument(
        "--driver-bytes-max", type=_whole, default=16 * 1024 * 1024, metavar="N",
        help="bytes of data files up to which no job is started",
    )  # fmt: skip


class _Parser(argparse.ArgumentParser):
    """A parser that says what was meant."""

    def error(self, message: str) -> NoReturn:
        """Print what is wrong, after the usage, and end with the status of a wrong command."""
        unknown = re.search(r"argument COMMAND: invalid choice: '([^']*)'", message)
        if unknown:
            close = meant(unknown[1], COMMANDS)
            message = f"there is no command {unknown[1]!r}{close}; they are {', '.join(COMMANDS)}"
        super().error(message)

    def refuse_unrecognized(self, rest: Sequence[str]) -> NoReturn:
        """End for arguments that no option takes."""
        known = [name for action in self._actions for name in action.option_strings]
        hints = [meant(rest[0], known)]
        if rest == ["-f"]:
            hints = [" (`tailer tail` follows without it)"]
        elif any(_TIME_OF_DAY.match(one) for one in rest):
            hints = ["; put a time into quotes, as in '2026-01-31 12:00:00'"]
        self.error(f"unrecognized arguments: {' '.join(rest)}{hints[0]}")


_TIME_OF_DAY = re.compile(r"\d\d?:\d\d")

COMMANDS = {
    command.name: command
    for command in (
        Command(
            "tail", "follow one table, its events as JSON lines", _add_tail_options,
            ends_well=True,
        ),
        Command(
            "read", "the changes of a range of versions, into a file", _add_read_command_options,
            writes_rows=True,
        ),
        Command(
            "init", "write a commented configuration file for one table, and check it",
            _add_init_options,
        ),
        Command(
            "run", "the daemon: all feeds of a configuration file", _add_run_options, "services",
            handles_signals=True,
        ),
        Command(
            "check", "validate a configuration; reach its tables and sinks", _add_check_options,
            "services",
        ),
        Command(
            "preview", "what a feed would send for some versions, without sending it",
            _add_preview_options, writes_rows=True,
        ),
        Command(
            "verify", "prove that the events lead from snapshot to snapshot", _add_verify_options
        ),
        Command(
            "snapshot", "a table's state at a version", _add_snapshot_options, writes_rows=True
        ),
        Command("history", "a table's commits, newest first", _add_history_options),
        Command("sinks", "the installed sinks and their options", _add_sinks_options),
        Command("shares", "what a Delta Sharing profile gives access to", _add_shares_options),
        Command(
            "share", "share tables over Delta Sharing, or manage its recipients' tokens",
            _add_share_options, "services", handles_signals=True,
        ),
        Command("offsets", "show or change a feed's saved offset", _add_offsets_options),
        Command("parked", "list, deliver or drop the rows that a feed parked", _add_parked_options),
        Command(
            "spark", "run a configuration's feeds on a Spark cluster", _add_spark_options,
            "services", handles_signals=True,
        ),
        Command("completion", "print what completes commands in a shell", _add_completion_options),
        Command("version", "the version; with --verbose what a report needs", _add_version_options),
    )
}  # fmt: skip


@cache
def build_parser(only: str | None = None) -> _Parser:
    """Return the argument parser of all commands, or of ``only`` one, which takes a tenth of the
    time; if there is no such command, of all."""
    top = _Parser(
        prog="tailer", description="Every row-level change of a Delta Lake table, in order."
    )
    top.add_argument("--version", action="store_true", help="print the version and exit")
    top.add_argument("--debug", action="store_true", help="show tracebacks")
    # Without the name, argparse formats its usage, which takes longer than the rest.
    commands = top.add_subparsers(dest="command", metavar="COMMAND", prog="tailer")
    for name in [only] if only in COMMANDS else COMMANDS:
        command = COMMANDS[name]
        added = commands.add_parser(name, help=command.does)
        added.set_defaults(parser=added)
        command.add_arguments(added)
    return top


def _parse_arguments(given: Sequence[str]) -> argparse.Namespace:
    """Return the arguments; `help COMMAND` is `COMMAND --help`."""
    if given[:1] == ["help"]:
        given = [*given[1:2], "--help"]
    top = build_parser(given[0]) if given else build_parser()
    arguments, rest = top.parse_known_args(given)
    if rest:
        of: _Parser = getattr(arguments, "parser", top)
        of.refuse_unrecognized(rest)
    return arguments


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; return the exit status."""
    arguments = _parse_arguments(list(sys.argv[1:] if argv is None else argv))
    try:
        refuse_foreign_owner()
        if arguments.version:
            from tailer.native.compiled import list_absent

            slower = f" (not compiled: {', '.join(list_absent())})" if list_absent() else ""
            print(f"delta-tailer {tailer.__version__}{slower}")
            return 0
        if arguments.command is None:
            build_parser().print_help(sys.stderr)
            return EXIT_USAGE
        return run_command(COMMANDS[arguments.command], arguments)
    except TailerError as e:
        if arguments.debug:
            raise
        for mistake in (e, *e.also) if isinstance(e, ConfigError) else (e,):
            print(f"tailer: {mistake}", file=sys.stderr)
        return EXIT_USAGE if isinstance(e, ConfigError) else EXIT_REFUSED
    except Exception as e:
        error = first_error(e)
        if arguments.debug or not is_shortage(error):
            raise
        print(f"tailer: {out_of_reach(f'{arguments.command} ends', error)}", file=sys.stderr)
        return EXIT_REFUSED


def _show_traceback(kind: type[BaseException], e: BaseException, trace: Any) -> None:
    """Write a traceback to standard error, without secrets: libraries put them into messages."""
    sys.stderr.write(hide_secrets("".join(traceback.format_exception(kind, e, trace))))


def run() -> None:
    """Run the process's command; end the process with its exit status."""
    install_receiver()
    sys.excepthook = _show_traceback
    status = 0
    try:
        status = main()
        print(end="", flush=True)  # sys.stdout is None where it was closed
    except OSError as e:
        broken = isinstance(e, BrokenPipeError)
        if not broken and (e.errno not in (errno.ENOSPC, errno.EDQUOT) or "--debug" in sys.argv):
            raise
        if not broken and not status:  # or it was said already, and what is left fails again
            where = e.filename or "standard output"
            print(f"tailer: {where}: {e.strerror}; make room there", file=sys.stderr)
        # If the reader of our output has gone, as `head` does, no message is needed. In either
        # case, nothing more can be written at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = EXIT_REFUSED
    end_process(status)
