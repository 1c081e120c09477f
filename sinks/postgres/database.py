"""One PostgreSQL database: its connection, and its dialect of SQL."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from io import BytesIO
from typing import Any

import pyarrow as pa
from pyarrow import csv

from sinks.postgres.vectors import (
    NO_EXTENSION,
    check_vectors,
    format_vector,
    hold_vectors,
    is_vector,
    read_vectors,
    vector_text,
)
from sinks.postgres.waiting import make_connection_class
from sinks.shared.misread import translate_misreads
from sinks.shared.options import find_credentials, naming_extra
from sinks.sql.database import CLAIMS, Database, KeyTaken
from sinks.sql.names import TOO_WIDE, NameRules
from sinks.sql.text import (
    Room,
    canonical_json,
    check_nul,
    check_times,
    hex_text,
    is_json,
    json_text,
)
from tailer.errors import ConfigError, RowsRefused, TailerError, TargetRefused, TransientError
from tailer.network.reach import explain_unreached
from tailer.secrets.urls import UrlError, split_url
from tailer.sink import FaultTable

_TYPES = {
    pa.bool_(): "boolean", pa.int8(): "smallint", pa.int16(): "smallint", pa.int32(): "integer",
    pa.int64(): "bigint", pa.float32(): "real", pa.float64(): "double precision",
    pa.string(): "text", pa.binary(): "bytea", pa.date32(): "date",
}  # fmt: skip
#: What a connection has unless the options say otherwise: a server that is gone is noticed.
_DEFAULTS = {"connect_timeout": "10", "keepalives_idle": "30", "tcp_user_timeout": "60000"}
#: Within each transaction, so that poolers may be between. A process that is paused in one must not
#: hold up the others; how long a statement takes is the sink's to say.
_BEGIN = """
    BEGIN; SET LOCAL TimeZone TO 'UTC'; SET LOCAL DateStyle TO 'ISO';
    SET LOCAL bytea_output TO 'hex'; SET LOCAL extra_float_digits TO 1;
    SET LOCAL lock_timeout TO {lock_ms}; SET LOCAL statement_timeout TO 0;
    SET LOCAL idle_in_transaction_session_timeout TO '60s'
"""
_IS_THERE = "SELECT 1 FROM information_schema.tables WHERE table_schema = ? AND table_name = ?"
_IS_ANOTHERS = """
    SELECT 1 FROM pg_tables
    WHERE schemaname = ? AND tablename = ? AND NOT pg_has_role(tableowner, 'USAGE')
"""
_COLUMNS = """
    SELECT column_name FROM information_schema.columns WHERE table_schema = ? AND table_name = ?
"""
_LENGTHS = """
    SELECT column_name, character_maximum_length FROM information_schema.columns
    WHERE table_schema = ? AND table_name = ? AND character_maximum_length IS NOT NULL
"""
#: By SQLSTATE. A value or a constraint is a row's; syntax, names and rights are the operator's.
#: Connections, transactions, resources, locks, a server that is read-only for now, and what is not
#: here, pass.
_FAULTS = FaultTable(
    for_good="0A000 0L* 0LP* 0P* 28* 2B* 2F* 3D* 3F* 42* 22023 54011 54023 57P04",
    rows="22* 23* 21* 44* 54000 P0001",
    # A name that another session makes just now, a cached plan, a statement of a pooler.
    passing="42P05 42710",
)
#: Errors of a connection have no SQLSTATE in libpq, only the words of the server and of libpq.
_FOR_GOOD = re.compile(
    r"authentication failed|no password supplied|pg_hba|(role|database|user) .* does not exist"
    r"|certificate|does not support SSL|SSL was required|sslmode|SSL connection is required"
)
_SCHEMES = ("postgresql", "postgres")
_COLUMN = re.compile(r"^COPY .*, line \d+, column ([^:\n]*)", re.MULTILINE)
#: A limit of the server: of what is written here, a row has it.
_TOO_LARGE = "54000"
_NO_TYPE, _DEPENDS = "42704", "2BP01"
_SYSTEM_COLUMNS = frozenset({"cmax", "cmin", "ctid", "tableoid", "xmax", "xmin"})
#: How many rows, and bytes of them, become text at once.
_ROWS_MAX, _WRITE_BYTES = 65536, 16_000_000
#: What is read and parsed at once, and what a line takes beside its text.
_READ_BYTES, _LINE_BYTES = 4_000_000, 50


class Postgres(Database):
    """A PostgreSQL database, by psycopg. ``dsn`` is libpq's, and never shown; ``user`` and
    ``password`` are beside it."""

    names = NameRules("PostgreSQL", kept_bytes=63, columns_max=1600, reserved=_SYSTEM_COLUMNS)
    folds_names = False
    numbering = "bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY"
    faults = _FAULTS
    claim_types = ("text", "text", "bigint", "bytea")
    lock = " FOR UPDATE"
    has_row_locks = True

    def __init__(
        self, dsn: str, schema: str, *, timeout_s: float = 60, user: str = "", password: str = "",
        vectors: Mapping[str, pa.DataType] | None = None,
    ) -> None:  # fmt: skip
        with naming_extra("postgres", "psycopg"):
            import psycopg
        given = _parse_parameters(psycopg, dsn, {"user": user, "password": password})
        self.schema = schema
        self._psycopg: Any = psycopg
        self._timeout_s = timeout_s
        self._vectors = vectors or {}
        self._begin = _BEGIN.format(lock_ms=round(timeout_s * 1000))
        self._given: dict[str, Any] = {**_DEFAULTS, **given}
        named = [str(given[name]) for name in ("host", "dbname") if given.get(name)]
        self.location = "/".join(["PostgreSQL", *named])
        self._connection: Any = None
        self._rooms: dict[str, Mapping[str, Room]] = {}

    def connect(self, *, read_only: bool = False) -> None:  # noqa: ARG002  # queries alone change nothing
        if self._connection is None:
            made = make_connection_class(self._timeout_s, self._is_alive, self._make_silence_error)
            with self._translate_errors():
                self._connection = made.connect(
                    autocommit=True, prepare_threshold=None, client_encoding="utf8", **self._given
                )

    def _is_alive(self) -> bool:
        """Return whether the server takes connections."""
        try:
            self._psycopg.connect(**self._given).close()
        except self._psycopg.Error:
            return False
        return True

    def _make_silence_error(self, seconds: float) -> TransientError:
        return TransientError(
            f"{self.location}: the server has not answered for {seconds:.0f} s (timeout_s of the "
            "sink)"
        )

    def abandon(self) -> None:
        """Close the connection; the server undoes its transaction."""
        connection, self._connection = self._connection, None
        self._rooms.clear()
        if connection is not None:
            with suppress(self._psycopg.Error):
                connection.close()

    def execute(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        cursor = self._execute(statement, values)
        return list(cursor.fetchall()) if cursor.description else []

    def change_rows(self, statement: str, *values: Any) -> int:
        return int(self._execute(statement, values).rowcount)

    def _execute(self, statement: str, values: tuple[Any, ...]) -> Any:
        with self._translate_errors():
            if not values:
                return self._connection.execute(statement)
            return self._connection.execute(statement.replace("%", "%%").replace("?", "%s"), values)

    def begin(self) -> None:
        self.execute(self._begin)

    def try_rights(
        self, target: str, key: Sequence[str], *, create: bool, evolve: bool, updates: bool  # noqa: ARG002  # a rehearsal shows the others
    ) -> None:  # fmt: skip
        """Send what changes no claim, and ask whose the table is."""
        if self.has_table(CLAIMS):
            for statement in self.idle_statements():
                self.execute(statement)
        if evolve and self.execute(_IS_ANOTHERS, self.schema, target):
            raise TargetRefused(
                f"{self.location}: the table {target!r} is another role's, and only its owner may "
                "change its columns; become a member of that role, or set evolve = false"
            )

    @contextmanager
    def rehearsal(self) -> Iterator[None]:
        """Put all transactions into one, which is undone."""
        self.begin()
        begin = self._begin
        self._begin, self.ends = "SAVEPOINT tried", ("RELEASE tried", "ROLLBACK TO tried")
        try:
            yield
        finally:
            self._begin = begin
            del self.ends
            self.abandon()

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        mode = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
        self.execute(self._begin.replace("BEGIN", mode, 1))
        yield
        self.execute("ROLLBACK")

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        """Translate psycopg's errors into our own, around each use of it."""
        with translate_misreads(self.location):
            try:
                yield
            except self._psycopg.Error as e:
                raise self._to_tailer_error(e) from e

    def _to_tailer_error(self, e: Any) -> TailerError:
        said = " ".join((e.diag.message_primary or str(e)).split())
        if isinstance(e, self._psycopg.errors.UniqueViolation):
            return KeyTaken(f"{self.location}: {said}")
        if e.sqlstate is None:
            if isinstance(e, self._psycopg.DataError):  # by psycopg itself, of a value
                return RowsRefused(f"{self.location}: {said}")
            if _FOR_GOOD.search(said):
                return TargetRefused(f"{self.location}: {said}; check the option 'dsn'")
            no_way = explain_unreached(self.location, e, "the option 'dsn'")
            return no_way or TransientError(f"{self.location}: {said}")
        column = _COLUMN.search(e.diag.context or "")
        where = f", column {column[1]!r}" if column else ""
        remedy = TOO_WIDE if e.sqlstate == _TOO_LARGE else ""
        if e.sqlstate == _DEPENDS:
            remedy = f" ({e.diag.message_detail}); drop what depends on it, and make it again later"
        if self._vectors and e.sqlstate == _NO_TYPE:
            remedy = NO_EXTENSION
        return self.faults.error(e.sqlstate, f"{self.location}{where}: {said}{remedy}")

    def quote_table(self, name: str) -> str:
        """Return a table's name with its schema."""
        return f"{self.quote_name(self.schema)}.{self.quote_name(name)}"

    def has_table(self, name: str) -> bool:
        """Return whether the schema has a table of this name."""
        return bool(self.execute(_IS_THERE, self.schema, name))

    def list_columns(self, name: str) -> list[str]:
        return [row[0] for row in self.execute(_COLUMNS, self.schema, name)]

    # Values

    def find_rooms(self, target: str, key: Sequence[str], schema: pa.Schema) -> Mapping[str, Room]:  # noqa: ARG002  # a key has no others
        """Return the lengths of the columns that others have made: PostgreSQL cuts blanks off."""
        if target not in self._rooms:
            found = self.execute(_LENGTHS, self.schema, target)
            self._rooms[target] = {name: Room(int(most), "characters") for name, most in found}
        return self._rooms[target]

    def check_schema(self, schema: pa.Schema) -> None:
        """Raise :class:`TargetRefused` for an option that names no column."""
        check_vectors(self._vectors, schema)

    def to_database_type(self, name: str, column: pa.Array) -> pa.Array:
        """Return a variant as its JSON, and what the option `vectors` names as a vector."""
        if name in self._vectors:
            return hold_vectors(column, self._vectors[name])
        return super().to_database_type(name, column)

    def check_values(self, column: pa.Array) -> None:
        """Raise :class:`ValueRefused` for what PostgreSQL can't hold."""
        check_nul(column, "PostgreSQL")
        check_times(column)

    def format_type(self, data_type: pa.DataType) -> str:
        """Return PostgreSQL's type of an Arrow type."""
        if pa.types.is_decimal(data_type):
            return f"numeric({data_type.precision},{data_type.scale})"
        if pa.types.is_timestamp(data_type):
            return "timestamptz" if data_type.tz else "timestamp"
        if is_vector(data_type):
            return format_vector(data_type)
        return "jsonb" if is_json(data_type) else _TYPES[data_type]

    def make_comparable(self, column: pa.Array, data_type: pa.DataType) -> pa.Array:
        """Return JSON in one form, vectors as text, and bytes in hexadecimal."""
        if is_vector(data_type):
            return vector_text(column) if is_vector(column.type) else read_vectors(column)
        if is_json(data_type):
            text = column if pa.types.is_string(column.type) else json_text(column)
            return canonical_json(text, data_type)
        if pa.types.is_binary(column.type):
            return hex_text(column, "\\x").cast(pa.string())
        return column

    def from_comparable(self, column: pa.Array, data_type: pa.DataType) -> pa.Array:
        """Return bytes from their hexadecimal form, and all else as it is."""
        if not pa.types.is_binary(data_type):
            return column.cast(data_type)
        texts = column.to_pylist()  # of the few keys that the table lacks
        return pa.array([bytes.fromhex(text.removeprefix("\\x")) for text in texts], data_type)

    # Rows, by COPY: they are text once, and no Python object each

    @contextmanager
    def stage_rows(self, keys: pa.Table) -> Iterator[str]:
        """Provide rows as a temporary table."""
        name = "pg_temp._delta_tailer_keys"
        columns = ", ".join(
            f"{self.quote_name(f.name)} {self.format_type(f.type)}" for f in keys.schema
        )
        self.execute(f"CREATE TEMPORARY TABLE _delta_tailer_keys ({columns}) ON COMMIT DROP")
        self.insert_rows(name, keys)
        yield name
        self.execute(f"DROP TABLE {name}")

    def insert_rows(self, relation: str, rows: pa.Table) -> None:
        names = self.quote_names(rows.schema.names)
        options = csv.WriteOptions(include_header=False, batch_size=_ROWS_MAX)
        with (
            self._translate_errors(),
            self._connection.cursor() as cursor,
            cursor.copy(f"COPY {relation} ({names}) FROM STDIN (FORMAT csv)") as copy,
        ):
            for batch in rows.to_batches(_find_batch_rows(rows)):
                columns = [_to_csv_type(column) for column in batch.columns]
                out = pa.BufferOutputStream()
                csv.write_csv(pa.table(columns, names=rows.schema.names), out, options)
                copy.write(memoryview(out.getvalue()))

    def read_rows(self, query: str, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a query. Who does not take all of them may read on in the same
        transaction."""
        in_transaction = self._psycopg.pq.TransactionStatus.INTRANS
        held = self._connection.info.transaction_status == in_transaction
        if held:
            self.execute("SAVEPOINT before_rows")
        try:
            yield from self._copy_out(query, schema)
        except GeneratorExit:  # the server was told to stop, and takes no more in this state
            if held:
                self.execute("ROLLBACK TO SAVEPOINT before_rows")
            raise

    def _copy_out(self, query: str, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        types = {f.name: _find_read_type(f.type) for f in schema}
        with (
            self._translate_errors(),
            self._connection.cursor() as cursor,
            cursor.copy(f"COPY ({query}) TO STDOUT (FORMAT csv)") as copy,
        ):
            lines: list[bytes] = []
            size = 0
            for line in copy:  # each is a row
                lines.append(bytes(line))
                size += len(line) + _LINE_BYTES
                if size >= _READ_BYTES:
                    yield self._parse_rows(lines, schema, types)
                    lines, size = [], 0
            if lines:
                yield self._parse_rows(lines, schema, types)

    def _parse_rows(
        self, lines: list[bytes], schema: pa.Schema, types: dict[str, pa.DataType]
    ) -> pa.RecordBatch:
        text = b"".join(lines)
        try:
            table = csv.read_csv(
                BytesIO(text),
                csv.ReadOptions(column_names=schema.names, use_threads=False, block_size=1 << 30),
                csv.ParseOptions(newlines_in_values=True),
                csv.ConvertOptions(
                    column_types=types, null_values=[""], strings_can_be_null=True,
                    quoted_strings_can_be_null=False, true_values=["t"], false_values=["f"],
                ),
            )  # fmt: skip
        except pa.ArrowInvalid as e:
            raise TargetRefused(
                f"{self.location}: a row is not of the Delta table's types ({e}); somebody else "
                "has changed the table"
            ) from e
        columns = [
            self.make_comparable(column.combine_chunks(), field.type)
            for column, field in zip(table.columns, schema, strict=True)
        ]
        return pa.RecordBatch.from_arrays(columns, names=schema.names)


def _parse_parameters(psycopg: Any, dsn: str, options: dict[str, str]) -> dict[str, Any]:
    """Return the parameters of a connection. Raises :class:`ConfigError`, which shows none."""
    wrong = "option 'dsn' of sink 'postgres' is not a connection string of libpq"
    found: dict[str, str | None] = {}
    try:
        if "://" in dsn.partition("=")[0]:
            # libpq would take the rest of a password with an @ for a host, and show it.
            scheme, found["user"], found["password"], rest = split_url(dsn, _SCHEMES)
            dsn = f"{scheme}://{rest}"
        given: dict[str, Any] = psycopg.conninfo.conninfo_to_dict(dsn)
    except UrlError as e:
        raise ConfigError(f"{wrong}: {e}") from None
    except psycopg.Error:
        # Its message would show parts of a password.
        raise ConfigError(f"{wrong}; see docs/sinks/postgres.md") from None
    given |= {name: value for name, value in found.items() if value is not None}
    user, password = find_credentials(
        "postgres", "dsn", options, given.pop("user", None), given.pop("password", None)
    )
    login = {"user": user, "password": password}
    return given | {name: value for name, value in login.items() if value}


def _find_batch_rows(rows: pa.Table) -> int:
    return int(max(1, min(_ROWS_MAX, rows.num_rows * _WRITE_BYTES // max(rows.nbytes, 1))))


def _to_csv_type(column: pa.Array) -> pa.Array:
    """Return a column in a type whose CSV PostgreSQL reads."""
    if is_vector(column.type):
        return vector_text(column)
    if is_json(column.type):
        return json_text(column)
    return hex_text(column, "\\x") if pa.types.is_binary(column.type) else column


def _find_read_type(data_type: pa.DataType) -> pa.DataType:
    text = is_json(data_type) or pa.types.is_binary(data_type)
    return pa.string() if text else data_type
