"""The paper's running example, live: change two operators in the middle of a micro-batch.

Card payments pass three operators. FC looks at the last 5 payments of the customer, FM at the
last 5 of the merchant, and MC combines the two probabilities::

    payments -> FC (by user) -> FM (by merchant) -> MC -> Parquet

While Spark works on a long micro-batch, FM is made to look at the last 10 payments and to give
one more probability, which MC must use from the same payment on. Then the same change is made
in the two ways that Spark knows: between two micro-batches, and with a restart.

Run it with ``make demo``. It needs no services and takes less than two minutes.
"""

from __future__ import annotations

import math
import shutil
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table

import fries
from fries.spark.local import stderr_to
from fries_lab.workloads.payments import DDL, SCHEMA, Payments, payments

CORES: Final = 2
BATCHES: Final = 3
"""One for each way to make the change."""
BATCH: Final = 10_000
"""Payments in a micro-batch."""
MODEL_SECONDS: Final = 0.0015
"""What FM waits for each payment: it stands for a real model, and makes micro-batches long."""
PATIENCE: Final = 60.0
"""Seconds after which a change that has not happened is a failure."""
LABEL: Final = "is_fraud"
"""The attribute that no operator may see."""
OPERATORS: Final = {
    "FC": "scores the customer's recent payments",
    "FM": "scores the merchant's recent payments",
    "MC": "combines the scores",
}

# --- The operators, in plain Python ---------------------------------------------------------------

Row: TypeAlias = "dict[str, Any]"
Recent: TypeAlias = "list[tuple[float, bool, bool] | None]"
"""Recent payments, the last one at the end: amount, whether online, whether it had an error."""


def remember(recent: Recent, row: Row) -> Recent:
    """Add a payment and forget the oldest."""
    online = row["use_chip"] == "Online Transaction"
    return [*recent[1:], (row["amount"], online, row["errors"] is not None)]


def probability(recent: Recent) -> float:
    """How much recent payments look like fraud: rising amounts, online, with errors."""
    known = [payment for payment in recent if payment is not None]
    usual = sum(amount for amount, _, _ in known) / len(known)
    online = sum(online for _, online, _ in known) / len(known)
    errors = sum(error for _, _, error in known) / len(known)
    return 1 / (1 + math.exp(4 - math.log(known[-1][0] / usual) - 2 * online - 3 * errors))


def score_customer(recent: Recent, row: Row) -> tuple[Recent, Row]:
    """FC: a probability from the last 5 payments of the customer."""
    recent = remember(recent, row)
    return recent, {**row, "p_c5": probability(recent)}


def score_merchant_5(recent: Recent, row: Row) -> tuple[Recent, Row]:
    """FM: a probability from the last 5 payments at the merchant."""
    time.sleep(MODEL_SECONDS)
    recent = remember(recent, row)
    return recent, {**row, "p_m5": probability(recent)}


def score_merchant_10(recent: Recent, row: Row) -> tuple[Recent, Row]:
    """The new FM: one more probability, from the last 10."""
    time.sleep(MODEL_SECONDS)
    recent = remember(recent, row)
    return recent, {**row, "p_m5": probability(recent[-5:]), "p_m10": probability(recent)}


def combine_two(row: Row) -> Row:
    """MC: the weighted mean of two probabilities."""
    return {"id": row["id"], "p": 0.4 * row["p_c5"] + 0.6 * row["p_m5"]}


def combine_three(row: Row) -> Row:
    """The new MC: it fails on a payment without ``p_m10``, so it must not meet the old FM."""
    return {"id": row["id"], "p": 0.4 * row["p_c5"] + 0.4 * row["p_m10"] + 0.2 * row["p_m5"]}


# --- The flow, and its two configurations ---------------------------------------------------------


def columns(*scores: str) -> pa.Schema:
    """The attributes of a payment without the label, and some scores."""
    known = [attribute for attribute in SCHEMA if attribute.name != LABEL]
    return pa.schema([*known, *(pa.field(score, pa.float64()) for score in scores)])


def build(flow: fries.Flow, stream: DataFrame) -> DataFrame:
    """FC, FM and MC on a stream of payments."""
    empty: Recent = [None] * 5
    fc = flow.source("payments", stream.drop(LABEL)).process(
        "FC",
        score_customer,
        key="user",
        order_by="time",
        initial=empty,
        schema=columns("p_c5"),
    )
    fm = fc.process(
        "FM",
        score_merchant_5,
        key="merchant",
        order_by="time",
        initial=empty,
        schema=columns("p_c5", "p_m5"),
    )
    return flow.output(fm.map("MC", combine_two, schema="id long, p double"))


def to_ten() -> dict[str, fries.Update]:
    """The change: FM and MC together, and how a state of 5 payments becomes one of 10."""
    return {
        "FM": fries.Update(
            score_merchant_10,
            migrate=lambda recent: [None] * 5 + recent,
            schema=columns("p_c5", "p_m5", "p_m10"),
        ),
        "MC": fries.Update(combine_three),
    }


def to_five() -> dict[str, fries.Update]:
    """The way back."""
    return {
        "FM": fries.Update(
            score_merchant_5,
            migrate=lambda recent: recent[-5:],
            schema=columns("p_c5", "p_m5"),
        ),
        "MC": fries.Update(combine_two),
    }


# --- The run --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Measured:
    """A change, and what it cost. Times are seconds from the request."""

    title: str
    change: fries.Reconfiguration
    first_score: float | None
    """Until FM had scored a payment by its new version; not measured where FM never paused."""
    cost: str
    began_again: float | None = None
    """Until a restarted query worked on its micro-batch again."""

    @property
    def delay(self) -> float:
        """Until the new versions were in force, everywhere."""
        return self.began_again or self.change.delay or 0.0


def run(flow: fries.Flow, screen: Screen) -> Iterator[Measured]:
    """The change, there and back and there again, each time when a micro-batch is half done."""
    wait_for(flow, BATCH // 2)
    yield by_fries(flow, screen)
    wait_for(flow, BATCH + BATCH // 2)
    yield at_boundary(flow, screen)
    wait_for(flow, 2 * BATCH + BATCH // 2)
    yield by_restart(flow, screen)


def by_fries(flow: fries.Flow, screen: Screen) -> Measured:
    """In the middle of the micro-batch, which goes on."""
    screen.say("Fries: FM and MC get their new versions now, in the middle of the micro-batch")
    change = flow.reconfigure(to_ten())
    delay = settled(change)
    screen.say(f"       all workers had switched after {seconds(delay)}")
    counted = flow.counters["FM"]
    rows = delay * CORES * counted.taken / counted.seconds
    cost = f"about {rows:,.0f} more payments by the old versions"
    return Measured("Fries", change, None, cost)


def at_boundary(flow: fries.Flow, screen: Screen) -> Measured:
    """What a driver can do between two micro-batches: the rest of this one stays old."""
    screen.say("mini-batch boundary: the way back, which has to wait for the next micro-batch")
    asked, old = time.monotonic(), rows_of(flow, "FM")
    change = flow.reconfigure(to_five(), scheduler="mini_batch")
    delay = settled(change)
    screen.say(f"       the next micro-batch began after {seconds(delay)}")
    wait_for(flow, 2 * BATCH + 1)
    cost = f"{2 * BATCH - old:,} more payments by the old versions"
    return Measured("mini-batch boundary", change, time.monotonic() - asked, cost)


def by_restart(flow: fries.Flow, screen: Screen) -> Measured:
    """Stop the query and start it on its checkpoint: the micro-batch begins anew."""
    screen.say("restart: the query is stopped with the micro-batch half done, and started again")
    asked = time.monotonic()
    change = flow.reconfigure(to_ten(), scheduler="restart")
    wait_for(flow, BATCHES * BATCH + 1, "FC")  # until it works again: FC was through before
    delay = time.monotonic() - asked
    settled(change)
    screen.say(f"       the micro-batch began again after {seconds(delay)}")
    screen.thrown_away = rows_of(flow, "FM") - 2 * BATCH
    wait_for(flow, rows_of(flow, "FM") + 1)
    cost = f"{screen.thrown_away:,} payments scored for nothing"
    return Measured("restart", change, time.monotonic() - asked, cost, began_again=delay)


def settled(change: fries.Reconfiguration) -> float:
    """Wait until all workers have the new versions; seconds since the request."""
    if not change.wait(PATIENCE) or change.delay is None:
        raise TimeoutError(f"after {PATIENCE:.0f} s: {change}")
    return change.delay


def rows_of(flow: fries.Flow, operator: str) -> int:
    """How many rows an operator has taken."""
    counted = flow.counters.get(operator)
    return 0 if counted is None else counted.taken


def wait_for(flow: fries.Flow, rows: int, operator: str = "FM") -> None:
    """Wait until an operator has taken so many rows; a query that failed says why."""
    while rows_of(flow, operator) < rows:
        failure = flow.query.exception() if flow.query else None
        if failure is not None:
            raise failure
        time.sleep(0.02)


# --- The screen -----------------------------------------------------------------------------------


@dataclass
class Screen:
    """A live view in a terminal; elsewhere a line now and then."""

    flow: fries.Flow
    console: Console
    thrown_away: int = 0
    """Rows of FM that count for nothing: the restart threw them away."""
    _began: float = field(default_factory=time.monotonic)
    _seen: deque[tuple[float, dict[str, int]]] = field(default_factory=lambda: deque(maxlen=8))
    """The last looks at the rows of each operator, for their speed."""

    def say(self, text: str) -> None:
        """Tell an event."""
        self.console.print(f"[dim]{time.monotonic() - self._began:5.1f} s[/]  {text}")

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Show the run while it goes on."""
        if self.console.is_terminal:
            with Live(
                console=self.console,
                get_renderable=self.table,
                refresh_per_second=4,
                transient=True,
            ):
                yield
            return
        over = threading.Event()
        teller = threading.Thread(target=self._tell, args=(over,), daemon=True)
        teller.start()
        try:
            yield
        finally:
            over.set()
            teller.join()

    def table(self) -> RenderableType:
        """Operators with their versions and speeds, and how far the micro-batch is."""
        speeds = self._look()
        table = Table(expand=True)
        table.add_column("operator")
        for title in ("version", "rows", "rows/s"):
            table.add_column(title, justify="right")
        for name, task in OPERATORS.items():
            version, rows = self.flow.versions[name], rows_of(self.flow, name)
            table.add_row(
                f"[bold]{name}[/] {task}", str(version), f"{rows:,}", f"{speeds[name]:,.0f}"
            )
        batch, done = self._progress()
        bar = Table.grid(expand=True, padding=(0, 1))
        bar.add_column()
        bar.add_column(ratio=1)
        bar.add_row(f" micro-batch {batch} of {BATCHES}", ProgressBar(total=BATCH, completed=done))
        return Group(table, bar)

    def line(self) -> str:
        """The same in one line."""
        speeds = self._look()
        batch, done = self._progress()
        parts = (
            f"{name} v{self.flow.versions[name]} {speeds[name]:,.0f} rows/s" for name in OPERATORS
        )
        return f"micro-batch {batch} of {BATCHES} {done / BATCH:4.0%}: {', '.join(parts)}"

    def _tell(self, over: threading.Event) -> None:
        while not over.wait(0.5):
            self._look()
            if len(self._seen) == self._seen.maxlen:
                self.say(self.line())
                self._seen.clear()

    def _progress(self) -> tuple[int, int]:
        """The micro-batch, from 1, and how many of its rows have passed FM."""
        rows = rows_of(self.flow, "FM") - self.thrown_away
        batch = min(rows // BATCH, BATCHES - 1)
        return batch + 1, rows - batch * BATCH

    def _look(self) -> dict[str, float]:
        """Rows per second of each operator, over the last looks."""
        rows = {name: rows_of(self.flow, name) for name in OPERATORS}
        self._seen.append((time.monotonic(), rows))
        (begin, old), (end, new) = self._seen[0], self._seen[-1]
        return {name: (new[name] - old[name]) / max(end - begin, 1e-9) for name in OPERATORS}


def seconds(value: float) -> str:
    """A time for people."""
    return f"{value * 1000:.0f} ms" if value < 1 else f"{value:.1f} s"


def comparison(results: list[Measured]) -> Table:
    """The three ways side by side."""
    table = Table(
        title="the same change, asked for when a micro-batch is half done",
        caption="delay: until the new versions are in force (restart: and the query works again)",
    )
    table.add_column("way")
    for title in ("delay", "x Fries", "first new score"):
        table.add_column(title, justify="right")
    table.add_column("cost")
    fastest = results[0].delay
    for one in results:
        table.add_row(
            one.title,
            seconds(one.delay),
            f"{one.delay / fastest:,.0f}",
            "-" if one.first_score is None else seconds(one.first_score),
            one.cost,
        )
    return table


def verdict_line(verdict: fries.Verdict) -> str:
    """What the audit says, in a line."""
    found = "serializable" if verdict.serializable else "NOT SERIALIZABLE"
    return (
        f"audit: {verdict.transactions:,} tuples, {verdict.operations:,} operations checked, "
        f"{verdict.mixed:,} mixed, {found}"
    )


def output_line(scores: DataFrame) -> str:
    """Whether each payment came out once, in a line."""
    ids = [row["id"] for row in scores.select("id").collect()]
    once = sorted(ids) == list(range(BATCHES * BATCH))
    return f"output: {len(ids):,} scores, {'each' if once else 'NOT each'} payment once"


def report(results: list[Measured], verdict: fries.Verdict) -> RenderableType:
    """The last screen."""
    met = verdict.tallies[0]
    return Group(
        Panel(str(results[0].change.plan), title="the plan of Fries", expand=False),
        comparison(results),
        f"Fries, in the middle of a micro-batch: {met.old:,} payments met the old FM and MC, "
        f"{met.new:,} new ones, {met.mixed:,} one of each",
        f"[bold]{verdict_line(verdict)}[/]",
    )


# --- Around it ------------------------------------------------------------------------------------


@contextmanager
def spark_session(log: Path) -> Iterator[SparkSession]:
    """A Spark inside this process tree that writes its own messages to a file."""
    builder = (
        SparkSession.builder.master(f"local[{CORES}]")
        .appName("fries-demo")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", str(CORES))
        .config("spark.log.level", "ERROR")
    )
    with stderr_to(log):
        spark = builder.getOrCreate()
    try:
        yield spark
    finally:
        spark.stop()


def write_payments(folder: Path) -> None:
    """As many files for each micro-batch as there are cores."""
    folder.mkdir()
    size = BATCH // CORES
    people = Payments(users=2_000, merchants=1_000)
    for number in range(BATCHES * CORES):
        rows = payments(number * size, size, people)
        pq.write_table(pa.Table.from_batches([rows]), folder / f"{number:03}.parquet")


def stop(flow: fries.Flow) -> None:
    """Stop the query, and then its control channel."""
    if flow.query is not None:
        flow.query.stop()
    flow.stop()


def demo(folder: Path, console: Console) -> None:
    """Payments, a query, three changes, an audit."""
    write_payments(folder / "payments")
    with ExitStack() as stack:
        spark = stack.enter_context(spark_session(folder / "spark.log"))
        stream = spark.readStream.schema(DDL).option("maxFilesPerTrigger", CORES)
        flow = fries.Flow("fraud", audit=folder / "audit")
        stack.callback(stop, flow)
        scores = build(flow, stream.parquet(str(folder / "payments")))
        flow.start(
            scores.writeStream.format("parquet")
            .option("path", str(folder / "scores"))
            .option("checkpointLocation", str(folder / "checkpoint"))
        )
        screen = Screen(flow, console)
        with screen.shown():
            screen.say("the query has started; its first micro-batch begins in some seconds")
            results = list(run(flow, screen))
            assert flow.query is not None
            flow.query.processAllAvailable()
        console.print(report(results, flow.audit()))
        console.print(output_line(spark.read.parquet(str(folder / "scores"))))


def main() -> None:
    """Run the demo in a folder of its own."""
    console = Console(width=None if sys.stdout.isatty() else 110, highlight=False)
    console.print(
        "[bold]payments -> FC -> FM -> MC[/], a streaming query on a local Spark.\n"
        f"{BATCHES * BATCH:,} generated card payments in {BATCHES} micro-batches; FM waits "
        f"{MODEL_SECONDS * 1000:.1f} ms for each, in place of a real model.\nStarting Spark ..."
    )
    folder = Path(tempfile.mkdtemp(prefix="fries-demo-"))
    try:
        demo(folder, console)
    except KeyboardInterrupt:
        console.print("stopped")
    except Exception:
        console.print(f"[red]The demo failed.[/] Spark's own messages are in {folder}/spark.log")
        raise
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
