"""The steps of a history that commit files. Each can be taken from any table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tests.fuzz.actions import remove_action
from tests.fuzz.model import Action, File, Row, State
from tests.fuzz.table import Table

_KINDS = ("insert", "delete", "update_preimage", "update_postimage")


def new_files(table: Table, state: State, rows: Sequence[Row] | None = None) -> list[File]:
    """New files of these rows, or of new ones."""
    found = []
    for _ in range(table.rng.choice([1, 1, 2])):
        if rows is None:
            some: Sequence[Row] = [
                table.row(state) for _ in range(table.rng.choice([0, 1, 2, 3, 5]))
            ]
        else:
            some = rows
        found.append(table.new_file(state, some, table.partition(state)))
        if rows is not None:
            break
    return found


def is_tracking(table: Table) -> bool:
    return "rowTracking" in table.state.features


def some_files(table: Table, most: int = 2) -> list[File]:
    """Some live files, no two of one path."""
    files = {f.path: f for f in table.files.values()}
    return table.rng.sample(list(files.values()), min(len(files), table.rng.randint(1, most)))


def cdc_files(table: Table, state: State) -> list[Action]:
    """Cdc files, with kinds of change in a writer's own order."""
    rng, found = table.rng, []
    for _ in range(rng.choice([1, 1, 2])):
        kinds = rng.choice([
            ["update_preimage", "update_postimage"] * rng.randint(1, 2),
            [rng.choice(_KINDS) for _ in range(rng.randint(1, 4))],
            ["insert"], ["delete", "delete"],
        ])  # fmt: skip
        images = [table.row(state) for _ in kinds]
        partition = table.partition(state)
        where = (
            rng.choice(["_change_data/", "", "c d/", "/elsewhere/"]) + f"cdc-{table.uuid()}.parquet"
        )
        size = table.write_rows(where, images, state, partition, kinds)
        texts = table.partition_texts(partition, state)
        path = table.spelled(where)
        cdc = {"path": path, "size": size, "dataChange": False, "partitionValues": texts}
        found.append({"cdc": cdc})
    return found


def _recorded(table: Table, chance: float = 0.85) -> list[Action]:
    """Cdc actions, where this commit has them; now and then where no property asks for them."""
    chance = chance if table.state.cdf else 0.05
    return cdc_files(table, table.state) if table.rng.random() < chance else []


def append(table: Table) -> None:
    files = new_files(table, table.state)
    cdc = []
    if table.state.cdf and table.rng.random() < 0.1 and files[0].rows:
        cdc = [_as_cdc(table, files[0])]
        size = cdc[0]["cdc"]["size"]
        files[0] = replace(files[0], action={**files[0].action, "size": size})
    table.commit(come=files, cdc=cdc, preserved=True, more=_extras(table))


def _as_cdc(table: Table, file: File) -> Action:
    """A cdc action for a data file that is added too: all of its rows tell their kind."""
    kinds = ["insert"] * len(file.rows)
    size = table.write_rows(file.path, file.rows, table.state, file.partition, kinds)
    cdc = {"path": table.spelled(file.path), "size": size, "dataChange": False}
    return {"cdc": {**cdc, "partitionValues": file.action["partitionValues"]}}


def _extras(table: Table) -> list[Action]:
    """Actions beside those of files, now and then."""
    found: list[Action] = []
    rng = table.rng
    if rng.random() < 0.15:
        txn: Action = {"appId": rng.choice(["a", "b", "é"]), "version": rng.choice([0, 7, 2**40])}
        found.append({"txn": txn})
    if rng.random() < 0.1 and not table.state.legacy and "domainMetadata" in table.state.features:
        domain: Action = {"domain": rng.choice(["x.y", "z"]), "configuration": '{"a":"\\u00e9"}',
                  "removed": rng.random() < 0.4}  # fmt: skip
        found.append({"domainMetadata": domain})
    return found


def nothing(table: Table) -> None:
    table.commit(more=_extras(table), preserved=True)


def remove(table: Table) -> None:
    files = some_files(table)
    cdc = _recorded(table, 0.2) if files else []
    table.commit(gone=files, cdc=cdc, preserved=True, more=_extras(table))


def _fewer(table: Table, file: File) -> File | None:
    """The file with more rows deleted, or now and then with others."""
    if not file.rows or "deletionVectors" not in table.state.features:
        return None
    rng = table.rng
    more = frozenset(i for i in range(len(file.rows)) if rng.random() < 0.4)
    deleted = more if rng.random() < 0.2 and not is_tracking(table) else file.deleted | more
    if not deleted:
        return None
    found = table.with_vector(file, deleted)
    return None if found.key in table.files or found.key in table.gone else found


def delete_by_vector(table: Table) -> None:
    pairs = [(f, g) for f in some_files(table) if (g := _fewer(table, f)) is not None]
    cdc = _recorded(table, 0.7) if pairs else []
    table.commit(gone=[f for f, _ in pairs], come=[g for _, g in pairs], cdc=cdc, preserved=True)


def rewritten(
    table: Table, files: Sequence[File], *, keep: bool, change: bool, state: State | None = None
) -> list[File]:
    """New files of the rows of these, some of them changed, left out or new."""
    rng, found = table.rng, []
    state = table.state if state is None else state
    for file in files:
        rows: list[Row] = []
        for row in file.live():
            kept = Row(row.values, row.id if keep else None, row.version if keep else None)
            draw = rng.random() if change else 1.0
            if draw < 0.2:
                continue
            if draw < 0.45:
                values = {**row.values, **table.row(state).values} if draw < 0.4 else row.values
                kept = Row(values, kept.id)
            rows.append(kept)
        if change and rng.random() < 0.4:
            rows.append(table.row(state))
        rng.shuffle(rows)
        split = rng.randint(0, len(rows)) if rng.random() < 0.2 else 0
        found += [
            table.new_file(state, part, file.partition) for part in (rows[:split], rows[split:])
        ]
    return found


def rewrite(table: Table) -> None:
    files, keep = some_files(table), is_tracking(table) and table.rng.random() < 0.7
    come = rewritten(table, files, keep=keep, change=True)
    if table.rng.random() < 0.3:
        come += new_files(table, table.state)
    keep = keep and table.state.on("delta.enableRowTracking")
    table.commit(gone=files, come=come, cdc=_recorded(table), preserved=keep, more=_extras(table))


def optimise(table: Table) -> None:
    files, keep = some_files(table, 3), is_tracking(table)
    come = rewritten(table, files, keep=keep, change=False)
    table.commit(gone=files, come=come, still=[*files, *come], preserved=keep)


def _fits(table: Table, file: File) -> bool:
    """Whether a file that is gone may come again: its columns are the table's, its ids unique."""
    if file.epoch != table.epoch or file.key in table.files:
        return False
    if not is_tracking(table):
        return True
    if any(f.path == file.path for f in table.files.values()):
        return False
    ids = [row.id for f in (*table.files.values(), file) for row in f.live() if row.id is not None]
    return len(ids) == len(set(ids))


def _returning(table: Table) -> list[File]:
    files = [f for f in table.gone.values() if _fits(table, f)]
    table.rng.shuffle(files)
    return files[:1]


def add_again(table: Table) -> None:
    """As a RESTORE does: files come again that were removed."""
    come = _returning(table)
    away = [f for f in some_files(table, 1) if not come or f.path != come[0].path]
    gone = away if table.rng.random() < 0.5 else []
    table.commit(come=come, gone=gone, preserved=True, cdc=_recorded(table, 0.2))


def twin(table: Table) -> None:
    """Add a data file under another deletion vector and leave the one that is there: two files."""
    pairs = [] if is_tracking(table) else [(f, _fewer(table, f)) for f in some_files(table, 1)]
    table.commit(come=[g for _, g in pairs if g is not None], preserved=True)


def store_again(table: Table) -> None:
    """Write deletion vectors again, in another place: the rows stay the same."""
    files = [f for f in some_files(table) if f.vector is not None]
    stored = [(f, table.with_vector(f, f.deleted, spare=False)) for f in files]
    pairs = [(f, g) for f, g in stored if g.key not in table.files]
    gone, come = [f for f, _ in pairs], [g for _, g in pairs]
    table.commit(gone=gone, come=come, still=[*gone, *come], preserved=True)


def refer_again(table: Table) -> None:
    """Refer to files that are there as added, and to files that are not as removed."""
    come = []
    for f in some_files(table):
        texts = table.partition_texts(f.partition, table.state)  # spelled otherwise, perhaps
        come.append(
            replace(f, action={**f.action, "modificationTime": 1, "partitionValues": texts})
        )
    known = [f for key, f in table.gone.items() if key not in table.files]
    removed = [remove_action(table, f, data_change=table.rng.random() < 0.7) for f in known[:1]]
    if not known and table.rng.random() < 0.5:
        removed = [{"remove": {"path": "never-there.parquet", "dataChange": True}}]
    still = come if table.rng.random() < 0.5 else []
    others = new_files(table, table.state) if table.rng.random() < 0.3 else []
    table.commit(come=[*come, *others], still=still, void_removes=removed, preserved=True)


def mixed(table: Table) -> None:
    """Several things at once: deletion vectors, removes, copies, new and returning files."""
    rng, files = table.rng, some_files(table, 4)
    gone, come, still = list[File](), list[File](), list[File]()
    for file in files:
        gone.append(file)
        fewer, draw = _fewer(table, file), rng.random()
        if fewer is not None and draw < 0.4:
            come.append(fewer)
        elif draw < 0.7:
            copies = rewritten(table, [file], keep=is_tracking(table), change=False)
            come += copies
            still += [file, *copies]
    paths = {f.path for f in files}
    # A file's rows may be in its copies by now.
    if not is_tracking(table):
        come += [f for f in _returning(table) if f.path not in paths]
    come += new_files(table, table.state) if rng.random() < 0.6 else []
    table.commit(
        gone=gone, come=come, still=still, cdc=_recorded(table, 0.6), preserved=is_tracking(table)
    )
