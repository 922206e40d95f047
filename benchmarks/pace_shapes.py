"""What ``benchmarks.pace`` compares: functions, as a flow and as one hand-written function."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Literal

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession

from fries.runtime.arrow import concat_batches
from fries.spark.schemas import arrow_schema
from fries.stream import Stream

FIXED_MS: Final = (0.0, 0.5, 1.0, 2.0, 5.0, 50.0)
ROW_MICROSECONDS: Final = (0.0, 1.0, 100.0)
LENGTHS: Final = (1, 5, 20)
SCHEMA: Final = "id long, user long, amount double, name string"
Style = Literal["row", "arrow", "pandas"]
Batches = Iterator[pa.RecordBatch]


@dataclass(frozen=True)
class Step:
    """One operator."""

    kind: Literal["map", "filter", "flat_map", "split"]
    style: Style
    function: Callable[[Any], Any]


@dataclass(frozen=True)
class Shape:
    """Steps that rows go through."""

    name: str
    rows: int
    steps: tuple[Step, ...]
    columns: int = 0
    """Of wide rows; 0: those of :data:`SCHEMA`."""
    exchange: bool = False
    changes: bool = False
    """Whether the delay of a change is measured, too."""

    @property
    def schema(self) -> str:
        """Its columns."""
        if not self.columns:
            return SCHEMA
        return ", ".join(["id long", *(f"c{n} double" for n in range(self.columns - 1))])

    @property
    def target(self) -> str:
        """The operator that is changed."""
        return "S0"

    def again(self) -> Callable[[Any], Any]:
        """Its function as a new version."""
        return partial(_called, self.steps[0].function, time.time())

    def rows_of(self, spark: SparkSession, times: int = 1) -> DataFrame:
        """Its rows, in one partition."""
        numbers = spark.range(0, self.rows * times, 1, 1)
        if self.columns:
            return numbers.selectExpr(
                "id", *(f"cast(id + {n} AS double) AS c{n}" for n in range(self.columns - 1))
            )
        return numbers.selectExpr(
            "id", "id % 1000 AS user", "id / 4 AS amount", "concat('n', id % 100) AS name"
        )

    def flow(self, stream: Stream) -> Stream:
        """As operators of a flow."""
        for number, step in enumerate(self.steps):
            name, batch = f"S{number}", None if step.style == "row" else step.style
            more: dict[str, Any] = {"shuffle": "id"} if self.exchange and not number else {}
            if step.kind == "map":
                stream = stream.map(name, step.function, self.schema, batch=batch, **more)
            elif step.kind == "flat_map":
                stream = stream.flat_map(name, step.function, batch=batch, **more)
            elif step.kind == "filter":
                stream = stream.filter(name, step.function, batch=batch, **more)
            else:
                first, second = stream.split(name, step.function, 2, batch=batch)
                stream = first.union(f"U{number}", second)
        return stream

    def plain(self, rows: DataFrame) -> DataFrame:
        """As one function of plain Spark, as someone who knows PySpark would write it."""
        if self.exchange:
            rows = rows.repartition(2, "id")
        styles = {step.style for step in self.steps}
        if styles == {"pandas"}:
            return rows.mapInPandas(partial(_in_pandas, self.steps), self.schema)
        make = _in_rows if styles == {"row"} else _in_turns
        return rows.mapInArrow(partial(make, self.steps, arrow_schema(self.schema)), self.schema)


def _called(function: Callable[[Any], Any], _: float, given: Any) -> Any:  # noqa: ANN401
    return function(given)


def _in_rows(steps: Sequence[Step], schema: pa.Schema, batches: Batches) -> Batches:
    for batch in batches:
        made = _rows_through(steps, batch.to_pylist())
        yield pa.RecordBatch.from_pylist(made, schema=schema)


def _rows_through(steps: Sequence[Step], rows: list[Any]) -> list[Any]:
    """Rows through functions of a row; a split needs no more than its call."""
    if all(step.kind == "map" for step in steps):
        functions = [step.function for step in steps]
        made = []
        for row in rows:
            for function in functions:
                row = function(row)
            made.append(row)
        return made
    for kind, function in [(step.kind, step.function) for step in steps]:
        if kind == "map":
            rows = [function(row) for row in rows]
        elif kind == "filter":
            rows = [row for row in rows if function(row)]
        elif kind == "flat_map":
            rows = [one for row in rows for one in function(row)]
        else:
            ways: tuple[list[Any], list[Any]] = [], []
            for row in rows:
                ways[function(row)].append(row)
            rows = ways[0] + ways[1]
    return rows


def _in_pandas(steps: Sequence[Step], frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    for given in frames:
        frame = given
        for step in steps:
            frame = _frame_through(step, frame)
        yield frame


def _frame_through(step: Step, frame: Any) -> Any:  # noqa: ANN401 - so is pandas
    """A frame through one function, as it would be written without a flow."""
    made = step.function(frame)
    if step.kind == "filter":
        return frame[made]
    if step.kind == "split":
        return pd.concat([frame[made == branch] for branch in (0, 1)])
    return made.drop(columns="_row") if step.kind == "flat_map" else made


def _batch_through(step: Step, batch: Any) -> Any:  # noqa: ANN401 - Arrow is typed loosely
    """The same for an Arrow batch."""
    made = step.function(batch)
    if step.kind == "filter":
        return batch.filter(made)
    if step.kind == "split":
        parts = [batch.filter(pc.equal(made, pa.scalar(branch))) for branch in (0, 1)]
        return concat_batches(parts)
    return made.drop_columns(["_row"]) if step.kind == "flat_map" else made


def _in_turns(steps: Sequence[Step], schema: pa.Schema, batches: Batches) -> Batches:
    """Batches through functions of all styles, converted where the style changes."""
    for batch in batches:
        data: Any = batch
        style: Style = "arrow"
        for step in steps:
            data, style = _as_style(data, style, step.style, schema), step.style
            if style == "row":
                data = _rows_through([step], data)
            else:
                data = (_batch_through if style == "arrow" else _frame_through)(step, data)
        yield _as_style(data, style, "arrow", schema)


def _as_style(data: Any, style: Style, wanted: Style, schema: pa.Schema) -> Any:  # noqa: ANN401
    if style == wanted:
        return data
    if style == "row":
        data = pa.RecordBatch.from_pylist(data, schema=schema)
    elif style == "pandas":
        data = pa.RecordBatch.from_pandas(data, schema=schema, preserve_index=False)
    return data.to_pylist() if wanted == "row" else data.to_pandas() if wanted == "pandas" else data


# Functions


def small(row: dict[str, Any]) -> dict[str, Any]:
    """A function of a row that does as little as it can."""
    return {**row, "amount": row["amount"] * 1.0001}


def usual(row: dict[str, Any]) -> dict[str, Any]:
    """A function of a row as people write them: a rule or two."""
    amount = row["amount"] * 1.0001
    if row["user"] % 7 == 3 and row["name"].startswith("n1"):
        return {**row, "amount": amount + 1.0, "name": row["name"].strip().lower()}
    fee = min(max(amount * 0.01, 0.5), 25.0)
    return {**row, "amount": round(amount - fee, 2)}


def in_arrow(batch: pa.RecordBatch) -> pa.RecordBatch:
    """A function over Arrow batches."""
    return batch.set_column(2, "amount", pc.multiply(batch["amount"], 1.0001))


def in_pandas(frame: pd.DataFrame) -> pd.DataFrame:
    """A function over frames."""
    return frame.assign(amount=frame["amount"] * 1.0001)


def most_rows(row: dict[str, Any]) -> bool:
    """A filter that few rows do not pass."""
    return bool(row["id"] % 50 != 7)


def some_twice(row: dict[str, Any]) -> list[dict[str, Any]]:
    """A flat_map that doubles few rows."""
    return [row, {**row, "amount": 0.0}] if row["id"] % 50 == 3 else [row]


def odd(row: dict[str, Any]) -> int:
    """A split."""
    return int(row["id"] % 2)


def most_of_batch(batch: pa.RecordBatch) -> Any:  # noqa: ANN401
    """A filter over Arrow batches."""
    return pc.greater_equal(batch["user"], pa.scalar(20))


def odd_of_batch(batch: pa.RecordBatch) -> Any:  # noqa: ANN401
    """A split over Arrow batches."""
    return pc.bit_wise_and(batch["id"], pa.scalar(1))


def some_of_batch_twice(batch: pa.RecordBatch) -> pa.RecordBatch:
    """A flat_map over Arrow batches that doubles few rows."""
    rows = _some_twice(batch["id"].to_numpy())
    return batch.take(pa.array(rows)).append_column("_row", pa.array(rows))


def _some_twice(ids: np.ndarray[Any, np.dtype[np.int64]]) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.repeat(np.arange(len(ids)), np.where(ids % 50 == 3, 2, 1))


def odd_of_frame(frame: pd.DataFrame) -> Any:  # noqa: ANN401
    """A split over frames."""
    return frame["id"] % 2


def some_of_frame_twice(frame: pd.DataFrame) -> pd.DataFrame:
    """A flat_map over frames that doubles few rows."""
    rows = _some_twice(frame["id"].to_numpy())
    return frame.iloc[rows].assign(_row=rows)


def most_of_frame(frame: pd.DataFrame) -> Any:  # noqa: ANN401
    """A filter over frames."""
    return frame["user"] >= 20


ROW, USUAL = Step("map", "row", small), Step("map", "row", usual)
ARROW, PANDAS = Step("map", "arrow", in_arrow), Step("map", "pandas", in_pandas)
MIXED_ROWS: Final = (
    USUAL,
    Step("filter", "row", most_rows),
    USUAL,
    Step("flat_map", "row", some_twice),
    Step("split", "row", odd),
)
MIXED: Final = (
    ARROW,
    Step("filter", "arrow", most_of_batch),
    USUAL,
    Step("filter", "row", most_rows),
    PANDAS,
)
BATCHES: Final = (
    ARROW,
    Step("filter", "arrow", most_of_batch),
    ARROW,
    Step("flat_map", "arrow", some_of_batch_twice),
    Step("split", "arrow", odd_of_batch),
)
FRAMES: Final = (
    PANDAS,
    Step("filter", "pandas", most_of_frame),
    PANDAS,
    Step("flat_map", "pandas", some_of_frame_twice),
    Step("split", "pandas", odd_of_frame),
)


def _chains() -> Iterator[Shape]:
    for length in LENGTHS:
        short = 400_000 if length < 20 else 100_000
        for name, rows, step in (
            ("small row", short, ROW),
            ("usual row", short // 2, USUAL),
            ("Arrow", 4_000_000, ARROW),
            ("pandas", 1_000_000, PANDAS),
        ):
            yield Shape(f"{length} {name} functions", rows, (step,) * length, changes=True)
    for times in (1, 4):
        for name, rows, steps in (
            ("of row: maps, filter, flat_map, split", 200_000, MIXED_ROWS),
            ("of Arrow: maps, filter, flat_map, split", 4_000_000, BATCHES),
            ("of pandas: maps, filter, flat_map, split", 1_000_000, FRAMES),
            ("mixed: Arrow, row, pandas", 200_000, MIXED),
        ):
            yield Shape(f"{5 * times} {name}", rows // times, steps * times, changes=True)


CHAINS: Final = tuple(_chains())


def spin(fixed: float, row: float, frame: pd.DataFrame) -> pd.DataFrame:
    """A function over frames with a fixed cost of a call and a cost of a row."""
    end = time.perf_counter() + fixed + row * len(frame)
    while time.perf_counter() < end:
        pass
    return frame


def costs() -> Iterator[Shape]:
    """Fixed costs of a call and costs of a row."""
    for fixed in FIXED_MS:
        for row in ROW_MICROSECONDS:
            function = partial(spin, fixed / 1000, row / 1e6)
            seconds = fixed / 1000 / 10_000 + row / 1e6
            count = (
                20_000 if row == 100 else max(200_000, min(2_000_000, int(1 / (seconds + 1e-6))))
            )
            name = f"{fixed:g} ms per call, {row:g} µs per row"
            yield Shape(name, count, (Step("map", "pandas", function),), changes=True)


def models() -> Iterator[Shape]:
    """Real scorers: a scikit-learn forest (if it is installed) and a network on ONNX Runtime."""
    yield Shape(
        "ONNX decision tree", 1_000_000, (Step("map", "arrow", onnx_scorer()),), changes=True
    )
    forest = forest_scorer()
    if forest is not None:
        yield Shape("scikit-learn forest", 1_000_000, (Step("map", "arrow", forest),), changes=True)


def onnx_scorer() -> Callable[[pa.RecordBatch], pa.RecordBatch]:
    """A trained decision tree of the package."""
    from fries_lab.workloads import models as trained

    folder = trained.__file__.rpartition("/")[0]
    return partial(_scored_by_onnx, f"{folder}/trained/user_tree.onnx")


_sessions: dict[str, Any] = {}


def _scored_by_onnx(path: str, batch: pa.RecordBatch) -> pa.RecordBatch:
    import onnxruntime

    if path not in _sessions:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        _sessions[path] = onnxruntime.InferenceSession(path, options)
    model = _sessions[path]
    (given, *_) = model.get_inputs()
    shape = batch.num_rows, *given.shape[1:]
    features = np.resize(batch["amount"].to_numpy(), shape).astype(np.float32)
    score = np.asarray(model.run(None, {given.name: features})[0], dtype=np.float64)
    scores = score.reshape(batch.num_rows, -1)[:, 0] if batch.num_rows else np.zeros(0)
    return batch.set_column(2, "amount", pa.array(scores))


def forest_scorer() -> Callable[[pa.RecordBatch], pa.RecordBatch] | None:
    """A forest of scikit-learn; ``None`` without it."""
    try:
        from sklearn.ensemble import RandomForestClassifier
    except ImportError:
        return None
    random = np.random.default_rng(0)
    features = random.normal(size=(2_000, 2))
    forest = RandomForestClassifier(n_estimators=50, max_depth=6, random_state=0)
    forest.fit(features, features.sum(axis=1) > 0)
    return partial(_scored_by_forest, forest)


def _scored_by_forest(forest: Any, batch: pa.RecordBatch) -> pa.RecordBatch:  # noqa: ANN401
    if not batch.num_rows:
        return batch
    features = np.stack([batch["amount"].to_numpy(), batch["user"].to_numpy()], axis=1)
    return batch.set_column(2, "amount", pa.array(forest.predict_proba(features)[:, 0]))


def wide_row(row: dict[str, Any]) -> dict[str, Any]:
    """A function of a wide row."""
    return {**row, "c0": row["c1"] + 1.0}


def wide_batch(batch: pa.RecordBatch) -> pa.RecordBatch:
    """A function over wide batches."""
    return batch.set_column(1, "c0", pc.add(batch["c1"], pa.scalar(1.0)))


def wide() -> Iterator[Shape]:
    """Rows of many columns, with and without an exchange."""
    for columns in (10, 100, 500):
        for exchange in (False, True):
            behind = " behind an exchange" if exchange else ""
            for style, function, cells in (
                ("row", wide_row, 2_000_000),
                ("arrow", wide_batch, 10_000_000),
            ):
                step = Step("map", style, function)  # type: ignore[arg-type]
                name = f"{columns} columns, {style} function{behind}"
                yield Shape(name, cells // columns, (step,), columns, exchange)
