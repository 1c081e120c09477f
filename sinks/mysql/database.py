"""One MySQL or MariaDB database: its connection, and its dialect of SQL.

A statement that makes or changes a table commits what is open. So it comes before the transaction
of the rows, as a single statement, which is carried out as a whole or not at all, and leaves a mark
of the columns that the table then has: after a crash between the two, the mark shows that it was
carried out.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from hashlib import blake2b
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa

from sinks.messages.messages import parse_limit
from sinks.messages.tls import make_tls_context
from sinks.mysql.statements import format_insertions
from sinks.mysql.texts import LENGTHS, find_key_rooms, find_table_rooms
from sinks.shared.history import HistoryNames
from sinks.shared.merge import ColumnStep, unused_name
from sinks.shared.misread import translate_misreads
from sinks.shared.options import naming_extra
from sinks.sql.database import CLAIMS, Claim, Database, KeyTaken, ValueRefused
from sinks.sql.names import TOO_WIDE, NameRules
from sinks.sql.rows import check_finite, make_json_comparable, read_batches
from sinks.sql.text import Room, check_times, is_json
from tailer.errors import ConfigError, RowsRefused, TailerError, TargetRefused, TransientError
from tailer.network.reach import explain_unreached
from tailer.secrets.urls import Url
from tailer.sink import FaultTable

_TYPES = {
    pa.bool_(): "BOOLEAN", pa.int8(): "TINYINT", pa.int16(): "SMALLINT", pa.int32(): "INT",
    # A FLOAT is shown with six digits only.
    pa.int64(): "BIGINT", pa.float32(): "DOUBLE", pa.float64(): "DOUBLE",
    pa.string(): "LONGTEXT", pa.binary(): "LONGBLOB", pa.date32(): "DATE",
}  # fmt: skip
#: Of a session: values that do not fit are errors, instants are in UTC, and no statement is refused
#: or cut short for what it might select. A lock is waited for so long; by default it is 50 s for
#: rows, and a day or a year for a table that others read.
_SESSION = """
    SET SESSION sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION', time_zone = '+00:00',
    innodb_lock_wait_timeout = {lock_s}, lock_wait_timeout = {lock_s},
    sql_safe_updates = 0, sql_big_selects = 1, sql_select_limit = 18446744073709551615
"""
_ISOLATION = "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ"
#: No statement is cut off: by its name in MariaDB, and in MySQL.
_ENDLESS = "SET SESSION max_statement_time = 0", "SET SESSION max_execution_time = 0"
_IS_THERE = """
    SELECT table_comment FROM information_schema.tables
    WHERE table_schema = DATABASE() AND table_name = ?
"""
_COLUMNS = """
    SELECT column_name FROM information_schema.columns
    WHERE table_schema = DATABASE() AND table_name = ? ORDER BY ordinal_position
"""
_NOT_ATOMIC = """
    SELECT table_name, t.engine FROM information_schema.tables AS t
    JOIN information_schema.engines AS e ON e.engine = t.engine AND e.transactions <> 'YES'
    WHERE table_schema = DATABASE()
    AND table_name IN (CONVERT(? USING utf8mb3), CONVERT(? USING utf8mb3))
"""
_DUPLICATE, _TOO_WIDE = 1062, 1118
#: By the number of the server's error. 2000 to 2999 are the client's own, about the connection; the
#: servers' own continue at 3000 (MySQL) and 4000 (MariaDB). What is not here passes: locks,
#: resources, a server that is read-only for now, a query that was interrupted.
_FAULTS = FaultTable(
    # Accounts and rights; what is missing, what can't be so, what the account's options forbid.
    for_good="""
        1044 1045 1130 1142 1143 1227 1251 1370 1449 1698 1820 1862 3118 3159 4151
        1005 1008 1046 1049 1050 1051 1054 1059 1060 1061 1063 1064 1067 1068 1069 1070 1071 1072
        1073 1074 1075 1091 1101 1102 1103 1109 1110 1113 1115 1117 1136 1146 1148 1149 1163 1164
        1166 1167 1170 1171 1173 1193 1215 1231 1232 1235 1239 1253 1267 1271 1273 1280 1286 1288
        1293 1305 1347 1348 1356 1364 1393 1394 1419 1423 1425 1426 1427 1439 1442 1471 1846
        1665 1785 1786 1787 3098 3105 3730 3750 3820 3822 4078 4119 4161
    """,
    # Values, constraints, triggers, JSON: of a row.
    rows="""
        1048 1062 1118 1138 1153 1169 1216 1217 1263 1264 1265 1292 1300 1365 1366 1367 1369 1406
        1411 1416 1441 1451 1452 1525 1526 1557 1586 1644 1690 1713 1748 1761 1762 1859 1916 1918
        3140 3141 3144 3146 3150 3156 3157 3158 3751 3752 3819 3903 3904 3934
        4025 4035 4036 4037 4038 4039 4040
    """,
)
_SCALE_MAX = 30
#: What a server takes that does not tell its max_allowed_packet: the least default of any.
_PACKET_BYTES = 4 * 1024**2

_DENIED = (1044, 1142)
#: What a statement is answered for which there are the rights: there is no such column or table.
_NOTHING_DONE = (1091, 1109, 1146)


class Mysql(Database):
    """A MySQL or MariaDB database, by PyMySQL."""

    ddl_in_transactions = False
    has_row_locks = True
    makes_in_rehearsal = False
    names = NameRules("MySQL", characters_max=64, columns_max=1017, blank_end=False, plane_0=True)
    numbering = "BIGINT AUTO_INCREMENT PRIMARY KEY"
    faults = _FAULTS
    claim_types = ("VARCHAR(255)", "LONGTEXT", "BIGINT", "LONGBLOB")
    lock = " FOR UPDATE"
    scratch = f"(`_delta_tailer_number` {numbering})"

    def __init__(self, url: Url, *, tls: bool, ca_file: Path | None, timeout_s: float = 60) -> None:
        with naming_extra("mysql", "PyMySQL"):
            import pymysql
        self._mysql: Any = pymysql
        self._name = unquote(url.path.strip("/"))
        self._given: dict[str, Any] = {
            "host": url.host, "port": url.port or 3306, "database": self._name,
            "user": url.user or "", "password": url.password or "",
        }  # fmt: skip
        self._tls, self._ca = tls, ca_file
        self._timeout_s = timeout_s
        # The server's own error names the lock, so it comes before the client's.
        self._session = _SESSION.format(lock_s=max(1, int(timeout_s * 0.75)))
        self.location = f"MySQL/{url.host}/{self._name}"
        self._connection: Any = None
        self._packet_bytes = 0
        self._rooms: dict[str, Mapping[str, Room]] = {}

    def connect(self, *, read_only: bool = False) -> None:  # noqa: ARG002  # queries alone change nothing
        if self._connection is not None:
            return
        context = None
        if self._tls:
            context = make_tls_context("mysql", self._ca) or ssl.create_default_context()
        flags = self._mysql.constants.CLIENT.FOUND_ROWS  # also a row that stays as it is counts
        with self._translate_errors():
            self._connection = self._mysql.connect(
                **self._given, charset="utf8mb4", autocommit=True, client_flag=flags,
                conv=_build_conversions(self._mysql), ssl=context, ssl_disabled=context is None,
                connect_timeout=10, init_command=self._session,
                read_timeout=self._timeout_s, write_timeout=self._timeout_s,
            )  # fmt: skip
            ((version, packet),) = self.execute("SELECT VERSION(), @@max_allowed_packet")
            maria = "MariaDB" in version
            self.execute(_ISOLATION)
            self.execute(_ENDLESS[0 if maria else 1])
        collation = "utf8mb4_nopad_bin" if maria else "utf8mb4_0900_bin"
        # Texts are equal only if all their bytes are, trailing blanks among them.
        self.texts = f"ENGINE = InnoDB CHARACTER SET utf8mb4 COLLATE {collation}"
        self._packet_bytes = parse_limit(packet, _PACKET_BYTES)

    def abandon(self) -> None:
        """Close the connection; the server undoes its transaction."""
        connection, self._connection = self._connection, None
        self._rooms.clear()
        if connection is not None:
            with suppress(self._mysql.Error, OSError):
                connection.close()

    def execute(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        return list(self._execute(statement, values).fetchall())

    def change_rows(self, statement: str, *values: Any) -> int:
        return int(self._execute(statement, values).rowcount)

    def _execute(self, statement: str, values: tuple[Any, ...]) -> Any:
        with self._translate_errors():
            cursor = self._connection.cursor()
            if values:
                cursor.execute(statement.replace("%", "%%").replace("?", "%s"), values)
            else:
                cursor.execute(statement)
            return cursor

    def begin(self) -> None:
        self.execute("START TRANSACTION")

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        self.execute("START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY")
        yield
        self.execute("ROLLBACK")

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        """Translate PyMySQL's errors into our own, around each use of it."""
        with translate_misreads(self.location):
            try:
                yield
            except (self._mysql.Error, OSError) as e:
                raise self._to_tailer_error(e) from e

    def _to_tailer_error(self, e: Exception) -> TailerError:
        code, *said = e.args or (0,)
        what = f"{self.location}: {' '.join(map(str, said or [e]))}"
        if not isinstance(code, int) or not isinstance(e, self._mysql.Error):
            return TransientError(what)
        if code == _DUPLICATE:
            return KeyTaken(what)
        refused = isinstance(e.__cause__ or e.__context__, ssl.SSLCertVerificationError)
        if refused or "SSL is required" in what or "doesn't support SSL" in what:
            return ConfigError(f"{what}; see the options 'tls' and 'ca_file' of sink 'mysql'")
        if code in _DENIED:
            what += "; grant the account the rights in docs/sinks/mysql.md"
        if (no_way := explain_unreached(self.location, e, "the option 'url'")) is not None:
            return no_way
        if "timed out" in what:
            what += f", after {self._timeout_s:g} s (timeout_s of the sink)"
        return self.faults.error(code, what + (TOO_WIDE if code == _TOO_WIDE else ""))

    # Tables

    @property
    def _rehearses(self) -> bool:
        return self.creates != Database.creates

    def quote_name(self, name: str) -> str:
        return "`" + name.replace("`", "``") + "`"

    def has_table(self, name: str) -> bool:
        """Return whether the database has a table of this name."""
        if not self._rehearses:
            return bool(self.execute(_IS_THERE, name))
        if name.startswith(CLAIMS):
            with suppress(TargetRefused):
                return self.execute(f"SELECT 1 FROM {self.quote_table(name)} LIMIT 0") == []
        return False

    def check_target(
        self, target: str, feed: str, mode: str, *, adopt: bool = False, lock: str = ""
    ) -> Claim | None:
        """See :class:`Database`. Raises too for a table that undoes nothing: half a batch would
        stay in it."""
        for name, engine in self.execute(_NOT_ATOMIC, target, CLAIMS):
            raise TargetRefused(
                f"{self.location}: the engine {engine} of the table {name!r} has no transactions; "
                f"run: ALTER TABLE {self.quote_table(name)} ENGINE = InnoDB"
            )
        return super().check_target(target, feed, mode, adopt=adopt, lock=lock)

    def list_columns(self, name: str) -> list[str]:
        """Return the names of a table's columns; of a temporary one none."""
        return [] if self._rehearses else [row[0] for row in self.execute(_COLUMNS, name)]

    def is_done(self, target: str, schema: pa.Schema) -> bool:
        """Return whether the table has the mark of these columns."""
        return [(_make_mark(schema),)] == self.execute(_IS_THERE, target)

    def format_creation(
        self, target: str, schema: pa.Schema, key: Sequence[str], number: str
    ) -> str:
        made = super().format_creation(target, schema, key, number)
        return f"{made} {self.texts} COMMENT = '{_make_mark(schema)}'"

    def format_column(self, field: pa.Field, key: Sequence[str], schema: pa.Schema) -> str:
        """Return the definition of a column; text and bytes of a key have a length."""
        room = find_key_rooms(key, schema).get(field.name)
        if room is None:
            kind = self.format_type(field.type)
        else:
            kind = f"{'VARCHAR' if room.unit == 'characters' else 'VARBINARY'}({room.most})"
        return f"{self.quote_name(field.name)} {kind}"

    def find_rooms(self, target: str, key: Sequence[str], schema: pa.Schema) -> Mapping[str, Room]:
        """Return the lengths of the columns, of a table that is not there yet those of its key."""
        of_key = find_key_rooms([name for name in key if name in schema.names], schema)
        if target not in self._rooms:
            self._rooms[target] = find_table_rooms(self.execute(LENGTHS, target), of_key)
        return {**of_key, **self._rooms[target]}

    def format_alterations(
        self, target: str, steps: Sequence[ColumnStep], schema: pa.Schema
    ) -> list[str]:
        if not steps:
            return []
        self._rooms.clear()
        changes = [self._format_change(step) for step in _merge_steps(steps)]
        changes.append(f"COMMENT = '{_make_mark(schema)}'")
        return [f"ALTER TABLE {self.quote_table(target)} {', '.join(changes)}"]

    def _format_change(self, step: ColumnStep) -> str:
        column, to = self.quote_name(step.column), step.field
        if step.kind == "retype":
            return f"CHANGE COLUMN {column} {self.quote_name(to.name)} {self.format_type(to.type)}"
        return self.format_alteration(step)

    def delete_rows(self, target: str, keys: str, key: Sequence[str]) -> int:
        # In this order: each key is looked up in the table.
        return self.change_rows(
            f"DELETE t FROM {keys} AS k STRAIGHT_JOIN {self.quote_table(target)} AS t "
            f"ON {self.format_key_match(key)}"
        )

    def end_rows(self, target: str, ends: str, key: Sequence[str], names: HistoryNames) -> int:
        """End the current rows of a history, in the order of :meth:`delete_rows`."""
        valid_to, to_version = map(self.quote_name, (names.valid_to, names.to_version))
        return self.change_rows(
            f"UPDATE {ends} AS k STRAIGHT_JOIN {self.quote_table(target)} AS t "
            f"ON {self.format_open_match(key, names)} "
            f"SET t.{valid_to} = k.{valid_to}, t.{to_version} = k.{to_version}"
        )

    def try_rights(
        self, target: str, key: Sequence[str], *, create: bool, evolve: bool, updates: bool
    ) -> None:
        """Send what changes nothing, also to tables that are not there: rights come first."""
        table, makes = self.quote_table(target), [CLAIMS, *([target] if create else [])]
        lacks = [self.quote_table(name) for name in makes if not self.has_table(name)]
        own = [self.quote_name(key[0])] if updates else []
        statements = [
            *(f"CREATE TABLE {name} LIKE information_schema._none" for name in lacks),
            *self.idle_statements(),
            f"INSERT INTO {table} SELECT * FROM {table} WHERE 1 = 0",
            *([f"DELETE FROM {table} WHERE 1 = 0"] if key else []),
            *(f"UPDATE {table} SET {n} = {n} WHERE 1 = 0" for n in own),
            *([f"ALTER TABLE {table} DROP COLUMN _delta_tailer_none"] if evolve else []),
        ]
        for statement in statements:
            try:
                self.execute(statement)
            except TargetRefused as e:
                if e.__cause__ is None or e.__cause__.args[0] not in _NOTHING_DONE:
                    raise

    @contextmanager
    def rehearsal(self) -> Iterator[None]:
        """Make temporary tables, for what is made here is not undone."""
        self.creates = "CREATE TEMPORARY TABLE"
        try:
            yield
        finally:
            del self.creates
            self.abandon()

    # Values

    def check_values(self, column: pa.Array) -> None:
        kind = column.type
        if pa.types.is_decimal(kind) and kind.scale > _SCALE_MAX:
            raise ValueRefused(f"the type {kind}, of which MySQL holds {_SCALE_MAX} decimals")
        check_times(column)
        check_finite(column, "MySQL", infinity=False)

    def format_type(self, data_type: pa.DataType) -> str:
        """Return MySQL's type of an Arrow type."""
        if pa.types.is_decimal(data_type):
            return f"DECIMAL({data_type.precision},{data_type.scale})"
        if pa.types.is_timestamp(data_type):
            return "DATETIME(6)"  # a TIMESTAMP ends in 2038
        return "JSON" if is_json(data_type) else _TYPES[data_type]

    def make_comparable(self, column: pa.Array, data_type: pa.DataType) -> pa.Array:
        """Return JSON in one form."""
        return make_json_comparable(column, data_type)

    # Rows: statements of many rows, made by columns

    @contextmanager
    def stage_rows(self, keys: pa.Table) -> Iterator[str]:
        """Provide rows as a temporary table."""
        name = self.quote_name("_delta_tailer_keys")
        names = keys.schema.names
        # Servers may refuse a table without a primary key, and no number is too long for one.
        number = f"{self.quote_name(unused_name('_number', names))} {self.numbering}"
        columns = ", ".join(
            [number, *(self.format_column(f, names, keys.schema) for f in keys.schema)]
        )
        self.execute(f"DROP TEMPORARY TABLE IF EXISTS {name}")
        self.execute(f"CREATE TEMPORARY TABLE {name} ({columns}) {self.texts}")
        self.insert_rows(name, keys)
        yield name
        self.execute(f"DROP TEMPORARY TABLE {name}")

    def insert_rows(self, relation: str, rows: pa.Table) -> None:
        names = self.quote_names(rows.schema.names)
        head = f"INSERT INTO {relation} ({names}) VALUES ".encode()
        for statement in format_insertions(head, rows, self._packet_bytes):
            if len(statement) >= self._packet_bytes:
                raise RowsRefused(
                    f"{self.location}: a row has {len(statement)} bytes, and the server takes "
                    f"{self._packet_bytes}; increase its max_allowed_packet, or exclude columns "
                    "with the feed's option 'select'"
                )
            with self._translate_errors():
                self._connection.query(statement)

    def read_rows(self, query: str, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        instants = [i for i, f in enumerate(schema) if pa.types.is_timestamp(f.type) and f.type.tz]
        with (
            self._translate_errors(),
            self._connection.cursor(self._mysql.cursors.SSCursor) as cursor,
        ):
            cursor.execute(query)

            def fetch(count: int) -> list[tuple[Any, ...]]:
                rows: list[tuple[Any, ...]] = cursor.fetchmany(count)
                if not instants:
                    return rows
                found = [list(row) for row in rows]
                for row in found:
                    for i in instants:
                        row[i] = row[i] and f"{row[i]}Z"
                return [tuple(row) for row in found]

            yield from read_batches(self.location, fetch, schema)


def _build_conversions(pymysql: Any) -> dict[Any, Any]:
    """Return how values are written, and which are read as numbers; all else is text or bytes."""
    kind = pymysql.constants.FIELD_TYPE
    whole = (kind.TINY, kind.SHORT, kind.INT24, kind.LONG, kind.LONGLONG)
    numbers = dict.fromkeys(whole, int) | {kind.DOUBLE: float}
    return {**pymysql.converters.encoders, **numbers}


def _make_mark(schema: pa.Schema) -> str:
    """Return a mark of the columns of a table."""
    return f"delta-tailer {blake2b(schema.serialize(), digest_size=8).hexdigest()}"


def _merge_steps(steps: Sequence[ColumnStep]) -> Iterator[ColumnStep]:
    """Yield steps that are taken at the same time: one for each column."""
    renames: dict[str, ColumnStep] = {}  # by the name that the column has by then
    others = []
    for step in steps:
        if step.kind == "rename":
            before = renames.pop(step.column, None)
            renames[step.field.name] = ColumnStep(
                "rename", before.column if before else step.column, step.field
            )
        elif step.kind == "retype" and step.column in renames:
            before = renames.pop(step.column)
            others.append(ColumnStep("retype", before.column, step.field, step.old))
        else:
            others.append(step)
    yield from renames.values()
    yield from others
