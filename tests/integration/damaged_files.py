"""Reads damaged tables, one after the other, in a process whose memory is limited.

    python -m tests.integration.damaged_files TABLES SEED FIRST LAST STEP

Cases are numbered, and a case is the same for the same seed and number. For each one, a line is
printed before it begins and one with its verdict when it has ended:

    refused   by a TableError that names version or file
    same      with the rows of the undamaged table
    other     with other rows, which can be written as JSON; where a checksum covers the damage,
              that is `wrong`
    raw       by another error: its trace follows in the same line
    heavy     whatever came of it, it took too much memory; the process ends
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import resource
import shutil
import sys
import tempfile
import traceback
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import anyio
import pyarrow as pa
import pyarrow.parquet as pq

from sinks.formats.json import json_lines
from tailer.changes import Offset
from tailer.compare.engine import DiffOptions
from tailer.decode.rows import DecodeOptions
from tailer.delta.add_fields import WITH_STATISTICS
from tailer.errors import TableError
from tailer.feed.options import FeedOptions
from tailer.feed.read import read_changes
from tailer.log.table import TableLog
from tailer.store.folders import FolderWatch
from tailer.store.local import LocalStore
from tailer.testing.table import Action, TableBuilder
from tests.integration import mutations

#: Far more than any case needs, and far less than the absurd sizes that some ask for. Most of it
#: is address space that the interpreter and its libraries reserve and never touch.
ADDRESS_BYTES_MAX = 4 * 2**30
#: Of the log and of deletion vectors. For a page of a data file pyarrow takes for a moment what the
#: page's header asks for, two gibibytes at most, before it finds that the file has no such page.
RESIDENT_MIB_MAX = 400

SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("name", pa.string()),
        ("tags", pa.list_(pa.string())),
        ("props", pa.map_(pa.string(), pa.int64())),
        ("place", pa.struct([("x", pa.float64()), ("names", pa.list_(pa.string()))])),
        ("at", pa.timestamp("us", "UTC")),
        ("price", pa.decimal128(12, 2)),
        ("p", pa.string()),
    ]
)


def _rows(first: int, count: int) -> list[dict[str, object]]:
    return [
        {
            "id": i,
            "name": None if i % 7 == 0 else f"name {i % 5}",
            "tags": [f"t{j}" for j in range(i % 4)],
            "props": [(f"k{j}", i * j) for j in range(i % 3)],
            "place": None if i % 11 == 0 else {"x": i / 3, "names": ["a", None][: i % 3]},
            "at": 1_700_000_000_000_000 + i,
            "price": i,
        }
        for i in range(first, first + count)
    ]


def _with_checksums(table: TableBuilder, action: Action) -> Action:
    """Write the action's file again, its pages with checksums, as Spark writes them."""
    ((_, values),) = action.items()
    file = table.folder / values["path"]
    pq.write_table(pq.read_table(file), file, write_page_checksum=True)
    values["size"] = file.stat().st_size
    return action


def _classic(folder: Path) -> TableBuilder:
    """A table with every kind of action, and a checkpoint that starts are made from."""
    table = TableBuilder(folder, SCHEMA, partition_by=["p"], cdf=True)
    features = ["deletionVectors"]
    writer = [*features, "changeDataFeed"]
    table.create(table.protocol(3, 7, readerFeatures=features, writerFeatures=writer))

    def add(first: int, count: int, p: str) -> Action:
        rows = _rows(first, count)
        group = count // 2 + 1
        return _with_checksums(table, table.add(rows, partition={"p": p}, row_group_size=group))

    first, second = add(0, 20, "a"), add(100, 30, "b")
    table.commit(first, second, {"commitInfo": {"operation": "WRITE"}})
    deleted = (*table.delete_rows(first, [3, 5, 19]), *table.delete_rows(second, range(9, 20), "p"))
    table.commit(*deleted, {"txn": {"appId": "app", "version": 1}})
    changed = [{**row, "_change_type": kind} for row in _rows(0, 3)
               for kind in ("update_preimage", "update_postimage")]  # fmt: skip
    cdc = _with_checksums(table, table.cdc(changed, partition={"p": "a"}))
    table.commit(table.remove(deleted[1]), add(0, 17, "a"), cdc)
    inline = table.delete_rows(add(300, 10, "c"), [1, 2, 9], "i")
    table.commit(inline[1], {"domainMetadata": {"domain": "d", "configuration": "{}",
                                                "removed": False}})  # fmt: skip
    return table


def build_tables(folder: Path) -> None:
    """The undamaged tables: the same history on top of commits, of a classic checkpoint, and of a
    v2 checkpoint with a sidecar."""
    commits = _classic(folder / "commits")
    for name in ("classic", "v2"):
        shutil.copytree(commits.folder, folder / name)
        table = TableBuilder(folder / name, SCHEMA)
        checkpoint = table.checkpoint(2)
        for version in range(3):
            table.commit_path(version).unlink()
        if name == "v2":
            _to_v2(table.log, checkpoint)


def _to_v2(log: Path, checkpoint: Path) -> None:
    rows = pq.read_table(checkpoint)
    files = rows.filter(pa.compute.is_valid(rows["add"])).select(["add"])
    (log / "_sidecars").mkdir()
    sidecar = log / "_sidecars" / "0123.parquet"
    pq.write_table(files, sidecar, write_page_checksum=True)
    entry = {"path": sidecar.name, "sizeInBytes": sidecar.stat().st_size, "modificationTime": 0}
    steering = [
        {kind: _json_of(values) for kind, values in row.items() if values is not None}
        for row in rows.drop_columns(["add", "remove"]).to_pylist()
        if any(row.values())
    ]
    manifest = [*steering, {"checkpointMetadata": {"version": 2}}, {"sidecar": entry}]
    uuid = "00000000-0000-0000-0000-000000000000"
    path = log / f"{2:020d}.checkpoint.{uuid}.json"
    path.write_text("".join(json.dumps(action) + "\n" for action in manifest))
    checkpoint.unlink()


def _json_of(values: object) -> object:
    """Maps, which come from Parquet as pairs, as objects."""
    if isinstance(values, dict):
        return {key: _json_of(value) for key, value in values.items() if value is not None}
    if isinstance(values, list) and (not values or isinstance(values[0], tuple)):
        return dict(values)
    return values


@dataclass(slots=True)
class Case:
    """One damaged file: ``covered`` if a checksum covers the damage."""

    table: str
    path: str
    data: bytes
    covered: bool = False


def make_case(rng: random.Random, folder: Path) -> Case | None:
    """A damaged file of one of the tables; None where the dice made none."""
    table = rng.choice(["commits", "commits", "classic", "v2"])
    root = folder / table

    def some(pattern: str) -> Path:
        return rng.choice(sorted(root.glob(pattern)))

    def case(path: Path, data: bytes | None, *, covered: bool = False) -> Case | None:
        if data is None or data == path.read_bytes():
            return None
        return Case(table, str(path.relative_to(root)), data, covered)

    match rng.randrange(12):
        case 0 | 1 | 2 | 3:
            path = some("_delta_log/*.json")
            return case(path, mutations.hostile_actions(rng, path.read_bytes()))
        case 4:
            path = some("_delta_log/*.json")
            return case(path, mutations.hostile_bytes(rng, path.read_bytes()))
        case 5 | 6:
            checkpoints = [*root.glob("_delta_log/*.parquet"), *root.glob("_delta_log/*/*.parquet")]
            if not checkpoints:
                return None
            path, data = checkpoints[0], checkpoints[0].read_bytes()
            damage = rng.choice([mutations.hostile_bytes, mutations.hostile_footer,
                                 mutations.retyped_parquet])  # fmt: skip
            return case(path, damage(rng, data))
        case 7:
            path = some("*.bin")
            return case(path, mutations.hostile_vector(rng, path.read_bytes()))
        case 8:
            path = some("*.bin")
            data = mutations.hostile_bytes(rng, path.read_bytes())
            return case(path, data, covered=True)
        case 9 | 10:
            path = rng.choice(
                sorted([*root.glob("*.parquet"), *root.glob("_change_data/*.parquet")])
            )
            damage = rng.choice([mutations.hostile_bytes, mutations.hostile_footer])
            return case(path, damage(rng, path.read_bytes()))
        case _:
            path = some("*.parquet")
            data = path.read_bytes()
            start, end = rng.choice(mutations.page_bodies(data))
            at = rng.randrange(start, end)
            damaged = bytearray(data)
            damaged[at] ^= 1 << rng.randrange(8)
            return case(path, bytes(damaged), covered=True)


class QuietStore(LocalStore):
    """Without notifications: nothing is written meanwhile, and it takes long to end them."""

    @asynccontextmanager
    async def watch(self, folder: str) -> AsyncIterator[FolderWatch]:
        del folder
        watch = FolderWatch(Path("/nowhere"))
        watch.close()
        yield watch


#: Ways to read a table: its files and the rows of its snapshot, and its changes found in two ways.
MODES = ("snapshot", "auto", "derived")


async def read_all(table: Path, mode: str, *, checked: bool = False) -> str:
    """A digest of everything that a reader gives; ``checked``: if pages fit their checksums."""
    # A copy's vectors are where the table was that it was copied from.
    log = TableLog(QuietStore(str(table), also=["/"]), torn_commit_max_s=0.0)
    digest = hashlib.sha256()
    diff = DiffOptions(memory_bytes_max=64 * 2**20)
    options = FeedOptions(
        change_source="derived" if mode == "derived" else "auto",
        diff=diff,
        decode=DecodeOptions(page_checksums=checked),
    )
    newest = await log.latest_version()
    if mode == "snapshot":
        snapshot = await log.load_snapshot()
        async with aclosing(log.live_files(snapshot, WITH_STATISTICS)) as files:
            paths = sorted([repr(file) async for file in files])
        digest.update(repr((newest, snapshot.state, paths)).encode())
        start = Offset(newest, snapshot=True)
    else:
        start = Offset(await log.earliest_version())
    async with aclosing(read_changes(log, start, newest, options)) as batches:
        async for batch in batches:
            batch.rows.validate()
            digest.update(memoryview(json_lines(batch.rows.schema.names, batch.rows.columns)))
            digest.update(repr(batch.event_ids().to_pylist()).encode())
    return digest.hexdigest()


async def verdict(case: Case, table: Path, mode: str, expected: str) -> str:
    """What came of reading the damaged table."""
    try:
        with anyio.fail_after(150):
            found = await read_all(table, mode, checked=case.covered)
    except TableError as e:
        named = e.version is not None or e.path is not None
        return "refused" if named else f"raw an error without a place: {e}"
    except BaseException as e:  # noqa: BLE001  # whatever it is, it is what the test is about
        return f"raw {type(e).__name__}: {e} {traceback.format_exc()!r}"
    if found == expected:
        return "same"
    return "wrong" if case.covered else "other"


async def work(tables: Path, seed: int, numbers: range) -> None:
    """Judge the cases of these numbers."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        shutil.copytree(tables, folder / "t")
        folder /= "t"
        expected = {
            (table.name, mode): await read_all(table, mode)
            for table in sorted(folder.iterdir())
            for mode in MODES
        }
        for number in numbers:
            rng = random.Random(f"{seed} {number}")
            case = None
            while case is None:
                case = make_case(rng, folder)
            mode = rng.choices(MODES, [5, 4, 1])[0]
            print(number, "begins", case.table, case.path, mode, flush=True)
            path = folder / case.table / case.path
            good, times = path.read_bytes(), (path.stat().st_atime_ns, path.stat().st_mtime_ns)
            path.write_bytes(case.data)
            os.utime(path, ns=times)
            found = await verdict(case, folder / case.table, mode, expected[case.table, mode])
            path.write_bytes(good)
            os.utime(path, ns=times)
            resident_mib = peak_mib()
            heavy = resident_mib > RESIDENT_MIB_MAX
            if heavy and (case.path.startswith("_delta_log") or case.path.endswith(".bin")):
                found = f"heavy {resident_mib} MiB, {found}"
            print(number, found, flush=True)
            if heavy:  # the peak never goes down again, so the next case needs a new process
                return


def peak_mib() -> int:
    """The most memory that this program has had resident, in MiB.

    Not ``ru_maxrss``: that begins with what the process had resident before it became this program,
    and so with the size of whoever started it.
    """
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) // 1024
    raise AssertionError("the kernel does not tell the peak")


def main() -> None:
    """Work with the memory that there is allowed to be."""
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_BYTES_MAX, ADDRESS_BYTES_MAX))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    tables, seed, first, last, step = sys.argv[1:]
    anyio.run(work, Path(tables), int(seed), range(int(first), int(last), int(step)))


if __name__ == "__main__":
    main()
