"""Records: every trial ever, one row each, as plain Parquet parts that pandas and duckdb read."""

from __future__ import annotations

import hashlib
import io
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from routetune.tasks.canonical import dumps
from routetune.tasks.errors import BadInput
from routetune.tasks.store import names
from routetune.tasks.store.files import Damaged, put_away, read_file
from routetune.tasks.store.mirror import Mirror, write_shared
from routetune.tasks.trial import REPRODUCIBLE

if TYPE_CHECKING:
    import pyarrow as pa
    from routetune.tasks.trial import Trial

#: 2 has the column "device".
SCHEMA = 2

#: Columns with their Arrow types, in order. "string" columns that hold JSON say so.
COLUMNS: dict[str, str] = {
    "schema_version": "int32",
    "run": "string",
    "target": "string",
    "environment": "string",  # key
    "route": "string",  # canonical text; empty for the default route
    "route_id": "string",
    "outcome": "string",  # trial.Outcome
    "reason": "string",
    "step": "string",  # where it failed
    "alias_of": "string",  # id of the route with the same engine
    "engine": "string",  # digest of the blob
    "engine_size": "int64",  # bytes
    "identity": "string",
    "accepted": "bool",
    "loss": "float64",
    "losses": "string",  # JSON, one dict per input set
    "verdict": "string",
    "speed": "float64",  # control time / candidate time
    "low": "float64",
    "high": "float64",
    "timing": "string",  # JSON, raw rounds
    "abandoned": "bool",
    "cached": "list<string>",  # steps answered from the store
    "seconds": "string",  # JSON, step -> seconds
    "log": "string",  # digest of the blob
    "finished_at": "timestamp[us, UTC]",
    "device": "string",  # UUID of the GPU, "cpu" or "cpu:0-3"; null in records of schema 1
}
_REQUIRED = ("run", "target", "environment", "route", "route_id", "outcome", "finished_at")
#: Columns that records of an earlier schema do not have.
_LATER = ("device",)
# The name carries the digest of the bytes: Parquet's own checksums leave the footer uncovered.
_PART = re.compile(r"part-[0-9]{20}-([0-9a-f]{16})\.parquet")
_KEY = re.compile(rf"records/{names.RUN}/{_PART.pattern}")
_VERSION = b"routetune.schema_version"


def row(run: str, target: str, environment: str, trial: Trial) -> dict[str, Any]:
    """The record of one trial that ended now.

    Args:
        environment: the environment's key.
    """
    engine, failure = trial.engine or {}, trial.failure
    return {
        "run": run,
        "target": target,
        "environment": environment,
        "route": str(trial.route),
        "route_id": trial.route.id,
        "outcome": str(trial.outcome),
        "reason": trial.reason,
        "step": failure.step if failure else None,
        "alias_of": trial.alias_of,
        "engine": engine.get("digest"),
        "engine_size": engine.get("size"),
        "identity": engine.get("identity"),
        "accepted": trial.accepted,
        "loss": trial.loss,
        "losses": None if trial.losses is None else dumps(trial.losses),
        "verdict": trial.verdict,
        "speed": trial.speed,
        "low": trial.low,
        "high": trial.high,
        "timing": None if trial.timing is None else dumps(trial.timing),
        "abandoned": trial.abandoned,
        "cached": list(trial.cached),
        "seconds": dumps(trial.seconds),
        "log": failure.log if failure else None,
        "finished_at": datetime.now(UTC),
        "device": trial.device,
    }


@cache
def record_schema() -> pa.Schema:
    """The Arrow schema of every part."""
    import pyarrow as pa

    kinds = {
        "int32": pa.int32(),
        "int64": pa.int64(),
        "float64": pa.float64(),
        "bool": pa.bool_(),
        "string": pa.string(),
        "list<string>": pa.list_(pa.field("element", pa.string())),
        "timestamp[us, UTC]": pa.timestamp("us", tz="UTC"),
    }
    fields = [
        pa.field(name, kinds[kind], nullable=name not in (*_REQUIRED, "schema_version"))
        for name, kind in COLUMNS.items()
    ]
    return pa.schema(fields, metadata={_VERSION: str(SCHEMA).encode()})


class Records:
    """The records under `root`, the folder of the store: records/<run>/part-*.parquet.

    Parts are only ever added, each whole, so any number of processes may append at once. A mirror offers
    each part as it is written, and fetches those of other hosts.
    """

    def __init__(self, root: Path, mirror: Mirror | None = None) -> None:
        self.root = root
        self.mirror = mirror
        self.folder = root / "records"
        self._pulled: set[str] = set()

    def append(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Add rows as made by `row`; those of one run become durable together.

        Raises:
            BadInput: a row lacks a column that it must have, or has one that the schema does not know.
        """
        import pyarrow as pa

        runs: dict[str, list[dict[str, Any]]] = {}
        for given in rows:
            checked = _checked(given)
            runs.setdefault(names.run(checked["run"]), []).append(checked)
        for run, group in runs.items():
            table = pa.Table.from_pylist(group, schema=record_schema())
            self._write(run, [table], time.time_ns())

    def read(
        self, run: str | None = None, target: str | None = None, columns: Sequence[str] = ()
    ) -> pa.Table:
        """Rows, oldest first, one for each (run, route): the last that was written.

        Damaged parts are set aside with a warning, and the others are read.

        Args:
            run: only this run; all runs by default.
            target: only this target.
            columns: only these, in this order; all by default. Raw samples are most of a row, and are not
                even unpacked where they are not asked for.

        Raises:
            BadInput: a newer routetune wrote a part; the message names it.
        """
        import pyarrow as pa

        self._pull(names.run(run) if run else "")
        needed = list(dict.fromkeys([*columns, "run", "route_id", "target"])) if columns else None
        tables = [self._read_run(run, needed)[0] for run in ([names.run(run)] if run else self._runs())]
        table = _last_of_each(pa.concat_tables([_empty(needed), *tables]))
        if target is not None:
            import pyarrow.compute as pc

            table = table.filter(pc.equal(table["target"], target))
        return table.select(list(columns)) if columns else table

    def finished_routes(self, run: str) -> set[str]:
        """Ids of the routes of a run whose record stands; that of a time-out, say, does not."""
        table = self.read(run, columns=("route_id", "outcome"))
        pairs = zip(table["route_id"].to_pylist(), table["outcome"].to_pylist(), strict=True)
        return {route for route, outcome in pairs if outcome in REPRODUCIBLE}

    def compact(self, run: str) -> None:
        """Merge the parts of a run into one.

        A kill in between leaves rows twice, which `read` does not show and the next call merges.
        """
        table, parts = self._read_run(names.run(run), ["run", "route_id"])
        if len(parts) < 2:
            return
        try:
            # By the time of the last: beside parts that it holds, on another host, rows keep their order.
            merged = self._write(run, _rows_of(parts, _last_rows(table)), _time_of(parts[-1]))
        except FileNotFoundError:
            return  # somebody else has merged them
        for part in parts:
            # Merging again what a killed call had merged gives the same bytes, hence the same name.
            if part != merged:
                part.unlink(missing_ok=True)
                self._forget(part, merged)

    def _forget(self, part: Path, merged: Path) -> None:
        """Have a mirror's remote without a part that was merged, once it has the merged one."""
        if self.mirror is None:
            return
        self.mirror.settle(part)
        if not self.mirror.is_pending(merged):
            self.mirror.delete(part)

    def _runs(self) -> list[str]:
        return sorted(path.name for path in self.folder.glob("*-*") if path.is_dir())

    def _write(self, run: str, tables: Iterable[pa.Table], nanoseconds: int) -> Path:
        import pyarrow.parquet as pq

        buffer = io.BytesIO()
        with pq.ParquetWriter(buffer, record_schema(), compression="zstd") as writer:
            for table in tables:
                writer.write_table(table)
        raw = buffer.getvalue()
        name = f"part-{nanoseconds:020d}-{hashlib.sha256(raw).hexdigest()[:16]}.parquet"
        path = self.folder / run / name
        write_shared(self.mirror, path, raw)
        return path

    def _pull(self, run: str) -> None:
        """Fetch the parts of a run, or of all runs, once for each opened store."""
        if self.mirror is not None and not self._pulled & {run, ""}:
            self._pulled.add(run)
            self.mirror.pull(f"records/{run}".rstrip("/"), _KEY, _is_part)

    def _read_run(self, run: str, columns: list[str] | None = None) -> tuple[pa.Table, list[Path]]:
        """All rows of a run, repeated ones included, and the sound parts that they came from, in order."""
        import pyarrow as pa

        while True:
            parts = self._parts(run)
            tables: dict[Path, pa.Table] = {}
            for part in parts:
                try:
                    tables[part] = _read_part(part, columns)
                except FileNotFoundError:
                    continue  # merged into another meanwhile
                except Damaged as damage:
                    put_away(self.root, part, "part of the records", damage)
            # New parts come last, so anything else than the same beginning means that parts were merged.
            if self._parts(run)[: len(parts)] == parts:
                return pa.concat_tables([_empty(columns), *tables.values()]), list(tables)

    def _parts(self, run: str) -> list[Path]:
        return sorted((self.folder / run).glob("part-*"))


def _empty(columns: list[str] | None = None) -> pa.Table:
    """No rows, of all columns or some."""
    table = record_schema().empty_table()
    return table if columns is None else table.select(columns)


def _time_of(part: Path) -> int:
    return int(part.name.split("-")[1])


def _checked(given: Mapping[str, Any]) -> dict[str, Any]:
    unknown = sorted(set(given) - set(COLUMNS))
    if unknown:
        raise BadInput(f"record: unknown column {', '.join(unknown)}; the columns are {', '.join(COLUMNS)}")
    lacking = [name for name in _REQUIRED if given.get(name) is None]
    if lacking:
        raise BadInput(f"record: {', '.join(lacking)} must be given")
    return {**given, "schema_version": SCHEMA}


def _read_part(path: Path, columns: list[str] | None = None) -> pa.Table:
    """One part, or some columns of it, every byte checked.

    Raises:
        FileNotFoundError: it is gone.
        Damaged: it is not what was written.
        BadInput: a newer routetune wrote it.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    raw = read_file(path)
    if not _is_part(path.name, raw):
        raise Damaged(f"its {len(raw)} bytes are not those that its name tells the digest of")
    try:
        file = pq.ParquetFile(io.BytesIO(raw))
        version = int((file.schema_arrow.metadata or {}).get(_VERSION, b"0"))
        if version > SCHEMA:
            raise BadInput(
                f"records {path} have schema {version}, this routetune reads up to {SCHEMA}: use a newer "
                "routetune"
            )
        return _completed(file.read(columns=columns), _empty(columns)).cast(_empty(columns).schema)
    except (pa.ArrowException, ValueError) as error:
        raise Damaged(f"it is no table of records: {error}") from error


def _completed(table: pa.Table, empty: pa.Table) -> pa.Table:
    """A table with nulls in the columns that came with a later schema than the one it was written in."""
    import pyarrow as pa

    for field in empty.schema:
        if field.name not in table.column_names and field.name in _LATER:
            table = table.append_column(field, pa.nulls(table.num_rows, field.type))
    return table.select(empty.column_names) if set(table.column_names) == set(empty.column_names) else table


def _is_part(key: str, raw: bytes) -> bool:
    """Whether bytes are those whose digest the name of a part tells."""
    name = _PART.fullmatch(key.rpartition("/")[2])
    return name is not None and hashlib.sha256(raw).hexdigest()[:16] == name[1]


def _last_of_each(table: pa.Table) -> pa.Table:
    """A route that was tried again in the same run (a time-out, say) counts with what came of it last."""
    last = _last_rows(table)
    return table if len(last) == table.num_rows else table.take(last)


def _last_rows(table: pa.Table) -> list[int]:
    pairs: Iterable[tuple[str, str]] = zip(
        table["run"].to_pylist(), table["route_id"].to_pylist(), strict=True
    )
    return sorted({pair: index for index, pair in enumerate(pairs)}.values())


def _rows_of(parts: Sequence[Path], rows: Sequence[int]) -> Iterator[pa.Table]:
    """These rows of all parts together, part by part: with their raw samples they fill the memory at once."""
    start = at = 0
    for part in parts:
        table = _read_part(part)
        begin = at
        while at < len(rows) and rows[at] < start + table.num_rows:
            at += 1
        if at > begin:
            yield table.take([row - start for row in rows[begin:at]])
        start += table.num_rows
