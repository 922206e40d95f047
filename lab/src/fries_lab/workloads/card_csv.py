"""Dataset 1 from the real file: the card payments that the paper used, if the user has them.

It is the public CSV of IBM's TabFormer (Padhi et al., 2021): 24 million payments, by user and card.
Its 15 columns are the paper's 12 attributes, with the moment of a payment in four. The file is read
in blocks; what is in memory is a block, or the payments of one month. Payments are put in the order
of time, as a stream would bring them; those of the same minute stay as they are in the file.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute
import pyarrow.csv
import pyarrow.parquet as pq
from rich.console import Console

from fries_lab.errors import DatasetError
from fries_lab.workloads import folders
from fries_lab.workloads.generate import FILE_ROWS, GROUP_ROWS, PAYMENTS, file_name
from fries_lab.workloads.payments import SCHEMA, USES

pc: Any = pyarrow.compute
"""Its type stubs do not know all kinds of arrays that its functions take."""
NUMBERS: Final = ("User", "Card", "Year", "Month", "Day", "Merchant Name", "MCC")
TEXTS: Final = ("Time", "Amount", "Use Chip", "Merchant City", "Is Fraud?")
OPTIONAL: Final = ("Merchant State", "Errors?")
"""Columns that may be empty: online shops have no state, and most payments no error."""
COLUMNS: Final = (*NUMBERS, *TEXTS, *OPTIONAL)
"""What is taken; the file also has ``Zip``, in whose place a payment here has a number."""
BLOCK: Final = 16 << 20
"""Bytes that are read at once."""
AMOUNT: Final = r"^(-?\$-?|-?)\d[\d,]*(\.\d+)?$"
"""Such as ``$134.09``, ``$-99.00`` for a refund, ``$1,234.50``."""
CLOCK: Final = r"^(?P<hour>[01]?\d|2[0-3]):(?P<minute>[0-5]\d)$"
YEARS: Final = (1900, 2100)
FRAUD: Final = ("No", "Yes")


def write_csv(
    source: Path, folder: Path, file_rows: int = FILE_ROWS, console: Console | None = None
) -> int:
    """Make dataset 1 of a CSV; how many payments it has."""
    rows = _count(source)
    recipe = {
        "kind": PAYMENTS,
        "rows": rows,
        "file_rows": file_rows,
        "csv": source.name,
        "bytes": source.stat().st_size,
    }
    folders.begin(folder, recipe)
    names = [file_name(PAYMENTS, number) for number in range(-(-rows // file_rows))]
    missing = set(folders.missing(folder, names))
    if missing:
        with (
            folders.scratch(folder) as place,
            folders.bars(console or Console(stderr=True)) as progress,
        ):
            bar = progress.add_task("read", total=rows)
            by_year = _spilled(source, place, lambda count: progress.advance(bar, count))
            bar = progress.add_task("sort and write", total=rows)
            first = 0
            for number, table in enumerate(_cut(_in_order(by_year), file_rows)):
                if names[number] in missing:
                    _write(table, first, folder / names[number])
                first += len(table)
                progress.advance(bar, len(table))
    folders.end(folder)
    return rows


def _count(source: Path) -> int:
    """How many payments a file has; refused if it is another kind of file."""
    rows = sum(batch.num_rows for batch in _read(source, ("User",)))
    if not rows:
        raise DatasetError(str(source), "it has a header and no payments")
    return rows


def _read(source: Path, columns: tuple[str, ...]) -> Iterator[pa.RecordBatch]:
    """Some columns of a file, block by block, all as text."""
    blocks = pyarrow.csv.ReadOptions(block_size=BLOCK)
    texts = pyarrow.csv.ConvertOptions(
        include_columns=list(columns),
        column_types=dict.fromkeys(COLUMNS, pa.string()),
        strings_can_be_null=True,
        null_values=[""],
    )
    try:
        with pyarrow.csv.open_csv(source, blocks) as reader:
            _check_header(source, reader.schema.names)
        with pyarrow.csv.open_csv(source, blocks, convert_options=texts) as reader:
            yield from reader
    except (pa.ArrowInvalid, UnicodeDecodeError) as error:  # the latter of names of columns
        empty = not source.stat().st_size
        problem = "it is empty" if empty else f"it is no such CSV; is it packed? ({error})"
        raise DatasetError(str(source), problem) from error
    except OSError as error:
        raise DatasetError(str(source), f"it cannot be read: {error}") from error


def _check_header(source: Path, names: list[str]) -> None:
    lacking = [name for name in COLUMNS if name not in names]
    if lacking:
        raise DatasetError(
            str(source),
            f"it lacks the columns {', '.join(lacking)}; its header is {', '.join(names)[:300]}. "
            "The file that is wanted has User, Card, Year, Month, Day, Time, Amount, Use Chip, "
            "Merchant Name, Merchant City, Merchant State, Zip, MCC, Errors? and Is Fraud?",
        )


def _spilled(source: Path, place: Path, advance: Any) -> list[Path]:  # noqa: ANN401
    """The payments of each year in a file of its own; the files, in the order of time."""
    files: dict[int, tuple[Path, Any]] = {}
    row = 0
    with ExitStack() as stack:
        for block in _read(source, COLUMNS):
            made = _Block(source, row, block).payments()
            row += block.num_rows
            years = pc.year(made["time"])
            for year in pc.unique(years).to_pylist():
                if year not in files:
                    path = place / f"{year}.arrow"
                    sink = stack.enter_context(pa.OSFile(str(path), "wb"))
                    files[year] = path, stack.enter_context(pa.ipc.new_file(sink, made.schema))
                files[year][1].write_batch(made.filter(pc.equal(years, year)))
            advance(block.num_rows)
    return [files[year][0] for year in sorted(files)]


def _in_order(by_year: list[Path]) -> Iterator[pa.Table]:
    """All payments in the order of time, month by month."""
    for path in by_year:
        with pa.memory_map(str(path)) as source:
            reader = pa.ipc.open_file(source)
            batches: list[Any] = [
                reader.get_batch(number) for number in range(reader.num_record_batches)
            ]
            for month in range(1, 13):
                chosen = [b.filter(pc.equal(pc.month(b["time"]), month)) for b in batches]
                table = pa.Table.from_batches(chosen, batches[0].schema).combine_chunks()
                order: Any = np.argsort(table["time"].to_numpy(), kind="stable")
                yield table.take(order)


def _cut(tables: Iterator[pa.Table], size: int) -> Iterator[pa.Table]:
    """The same rows in tables of one size; the last one may be smaller."""
    held: list[pa.Table] = []
    for table in tables:
        held.append(table)
        while sum(map(len, held)) >= size:
            whole = pa.concat_tables(held)
            yield whole.slice(0, size)
            held = [whole.slice(size)]
    rest = pa.concat_tables(held)
    if len(rest):
        yield rest


def _write(table: pa.Table, first: int, path: Path) -> None:
    numbered = table.add_column(0, "id", pa.array(np.arange(first, first + len(table))))
    with folders.whole_file(path) as place:
        pq.write_table(numbered.cast(SCHEMA), place, row_group_size=GROUP_ROWS)


class _Block:
    """Rows of the file, and which they are."""

    def __init__(self, source: Path, first: int, rows: pa.RecordBatch) -> None:
        self._source, self._first, self._rows = source, first, rows

    def payments(self) -> pa.RecordBatch:
        """The same as payments without a number."""
        for name in (*NUMBERS, *TEXTS):
            self._require(name, pc.is_valid(self._rows[name]), "it is missing")
        chip = self._one_of("Use Chip", USES)
        fraud = self._one_of("Is Fraud?", FRAUD)
        columns: dict[str, Any] = {
            "user": self._number("User"),
            "card": self._number("Card"),
            "time": self._moments(),
            "amount": self._amounts(),
            "use_chip": chip,
            "merchant": self._number("Merchant Name"),
            "city": self._rows["Merchant City"],
            "state": self._rows["Merchant State"],
            "category": self._number("MCC"),
            "errors": pc.utf8_rtrim(self._rows["Errors?"], characters=","),
            "is_fraud": pc.equal(fraud, "Yes"),
        }
        wanted = pa.schema([field for field in SCHEMA if field.name != "id"])
        try:
            return pa.record_batch(columns).cast(wanted)
        except pa.ArrowInvalid as error:  # a card or a category that does not fit 32 bits
            self._refuse(0, f"a number is too large in it or in a row soon after it: {error}")

    def _number(self, name: str) -> Any:  # noqa: ANN401
        texts = self._rows[name]
        self._require(name, pc.match_substring_regex(texts, r"^-?\d{1,19}$"), "no whole number")
        try:
            return texts.cast(pa.int64())
        except pa.ArrowInvalid as error:
            self._refuse(0, f"a number is too large in it or in a row soon after it: {error}")

    def _amounts(self) -> Any:  # noqa: ANN401
        texts = self._rows["Amount"]
        self._require("Amount", pc.match_substring_regex(texts, AMOUNT), "no amount like $-12.50")
        return pc.replace_substring_regex(texts, r"[$,]", "").cast(pa.float64())

    def _one_of(self, name: str, values: tuple[str, ...] | list[str]) -> Any:  # noqa: ANN401
        found = self._rows[name]
        known = pc.is_in(found, value_set=pa.array(values))
        self._require(name, known, f"it is none of {', '.join(values)}")
        return found

    def _moments(self) -> Any:  # noqa: ANN401
        """Year, month, day and time as one."""
        clock = pc.extract_regex(self._rows["Time"], CLOCK)
        self._require("Time", pc.is_valid(clock), "no time like 06:21")
        hours, minutes = (
            pc.struct_field(clock, name).cast(pa.int64()).to_numpy() for name in ("hour", "minute")
        )
        year, month, day = (self._number(name).to_numpy() for name in ("Year", "Month", "Day"))
        self._require("Year", pa.array((YEARS[0] <= year) & (year <= YEARS[1])), "no such year")
        self._require("Month", pa.array((month >= 1) & (month <= 12)), "no such month")
        months = ((year - 1970) * 12 + month - 1).astype("datetime64[M]")
        days = months.astype("datetime64[D]") + (day - 1)
        self._require("Day", pa.array(days.astype("datetime64[M]") == months), "no such day")
        moments = days.astype("datetime64[us]") + (hours * 60 + minutes) * 60_000_000
        return pa.array(moments, pa.timestamp("us")).cast(SCHEMA.field("time").type)

    def _require(self, name: str, good: Any, problem: str) -> None:  # noqa: ANN401
        """Refuse the file if a value is not good; say which."""
        if not pc.all(good, min_count=0).as_py():
            row = pc.index(good, pa.scalar(False)).as_py()
            value = self._rows[name][row].as_py()
            shown = "" if value is None else f" ({value[:80]!r})"
            self._refuse(row, f"{name}{shown}: {problem}")

    def _refuse(self, row: int, problem: str) -> NoReturn:
        raise DatasetError(str(self._source), f"row {self._first + row + 1}: {problem}")
