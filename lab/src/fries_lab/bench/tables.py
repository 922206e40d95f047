"""Results as tables for the terminal, the paper's numbers beside the simulated ones."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, TypeAlias

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from fries_lab.bench import paper_numbers as paper
from fries_lab.bench.measure import VERSIONS_END, WINDOW, Delays
from fries_lab.bench.simulated import (
    DelayTable,
    Inference,
    ParallelismRow,
    PruningTable,
    Result,
    SweepPoint,
)
from fries_lab.workloads import simulated as workloads
from fries_lab.workloads.simulated import FULL, Scale

TUPLE: Final = {
    "W1": "one payment",
    "W2": "one network buffer of rows",
    "W3": "one network buffer of rows",
    "W4": "one payment",
    "W5": "one payment",
}
"""What one simulated tuple stands for."""
NOTES: Final = {
    "W1": (
        "FD takes 25 ms per tuple; one source and one sink worker. "
        f"{workloads.HOT_SHARE:.0%} of the FD workers get {workloads.HOT} times the mean load: "
        "the paper's slowest got 1.77 times, which 1,000 tuples/s would not survive here. "
        "Latency counts from where a tuple enters; with mini_batch, and while restart holds "
        "tuples back, from where it is made."
    ),
    "W2": (
        f"A join takes {workloads.BUFFER_WORK * 1e3:.0f} ms per tuple on average and filters; "
        "back-pressure holds the sources."
    ),
    "W3": (
        f"A join takes {workloads.BUFFER_WORK * 1e3:.0f} ms per tuple on average and filters; "
        "back-pressure holds the sources. U1a and U1b are the paper's U1."
    ),
    "W4": (
        f"FD1 and FD2 take 25 ms per tuple; U2 makes {workloads.PAYMENTS} of a record, faster "
        "than FD1 follows. LP and MC are the small operators between. From U2 on the markers of "
        "both schedulers wait in the same queues; only the way to U2 differs."
    ),
    "W5": (
        "FD3 and FD4 take 25 ms per tuple, one worker of FD3 "
        f"{workloads.STRAGGLER * 25:.0f} ms. 3 ms are three control messages of 1 ms each."
    ),
}
"""What else to know before reading a workflow's tables."""
CHOSEN: Final = (
    "Buffer sizes, which the paper does not give, are chosen, mostly for queues about as long "
    "as its own: compare the order of delays, not milliseconds."
)

Titled: TypeAlias = tuple[str, Table]
"""A table with its title, which stands outside so that it may be wider."""


def render(workflow: str, result: Result, scale: Scale) -> RenderableType:
    """Everything to print for a workflow; before each table, the words that it is simulated."""
    match result:
        case Inference():
            shown = list(_inference(result, scale))
        case DelayTable():
            shown = [_delay_table(workflow, result)]
            if result.parallelism:
                shown.append(_parallelism(result.parallelism))
        case PruningTable():
            shown = [_pruning_table(result)]
    parts: list[RenderableType] = [Text(), Text(_notes(workflow, scale))]
    for title, table in shown:
        notice = f"\nSimulated, not measured: one tuple stands for {TUPLE[workflow]}."
        parts.extend((Text(), Text.assemble((title, "bold"), notice), table))
    return Group(*parts)


def _notes(workflow: str, scale: Scale) -> str:
    size = f"{workflow}, {scale.workers} workers per operator"
    if scale != FULL:
        size += f" and times multiplied by {scale.time:g}: NOT the paper's scale"
    sizes = {data.table: f"{data.table.lower()} ({data.tuples} tuples)" for data in paper.DATASETS}
    read = ", ".join(sizes[table] for table in paper.READS[workflow])
    return f"{size}. {NOTES[workflow]} {CHOSEN} The paper measured on Flink: {read}."


def _inference(result: Inference, scale: Scale) -> Iterable[Titled]:
    first, second = (moment * scale.time for moment in workloads.SURGE_REQUESTS)
    window = f"{WINDOW * scale.time:g}-second windows"
    table = _table(
        ("scheduler", "paper"),
        (f"delay at {first:g} s", f"delay at {second:g} s", "peak", "at the end"),
    )
    for run in result.surge:
        shown = [_seconds(delay) for delay in run.delays] or ["", ""]
        said = paper.SURGE.get(run.scheduler, "")
        table.add_row(run.scheduler, said, *shown, _seconds(run.peak), _seconds(run.final))
    yield f"W1: surge, mean latency of {window} and delays (s)", table

    table = _table(("scheduler",), ("simulated", "paper"))
    for count in result.invalid:
        printed = f"{paper.INVALID_TUPLES[count.scheduler]:,}"
        table.add_row(count.scheduler, f"{count.count[-1]:,}", printed)
    yield f"W1: invalid tuples after {VERSIONS_END * scale.time:g} s", table

    rates = [(f"{point.rate:,}", point) for point in result.by_rate]
    yield _sweep("W1: delay against ingestion rate", "tuples/s", rates)
    costs = [(f"{point.cost * 1e3:g}", point) for point in result.by_cost]
    yield _sweep("W1: delay against the cost of FD", "ms/tuple", costs)


def _sweep(title: str, unit: str, points: list[tuple[str, SweepPoint]]) -> Titled:
    table = _table((), (unit, "Fries ms", "epoch ms"))
    for value, point in points:
        table.add_row(value, _ms(point.fries), _ms(point.epoch))
    return f"{title} (the paper draws it, without numbers)", table


def _delay_table(workflow: str, result: DelayTable) -> Titled:
    table = _table(
        ("targets", "components, heads in brackets"),
        ("longest path", "Fries ms", "paper", "epoch ms", "paper"),
    )
    for row in result.rows:
        table.add_row(
            ", ".join(row.targets),
            Text("\n".join(row.components)),
            str(row.longest_path),
            _ms(row.fries),
            f"{row.paper.fries_ms:,}",
            _ms(row.epoch),
            f"{row.paper.epoch_ms:,}",
        )
    return f"{workflow}: reconfiguration delay (mean ± standard deviation)", table


def _parallelism(rows: Iterable[ParallelismRow]) -> Titled:
    table = _table(
        (),
        ("workers", "channels", "paper", "in the MCS", "paper", "Fries ms", "epoch ms"),
    )
    for row in rows:
        table.add_row(
            str(row.workers),
            f"{row.channels:,}",
            f"{row.paper.total:,}",
            f"{row.channels_in_mcs:,}",
            f"{row.paper.in_mcs:,}",
            _ms(row.fries),
            _ms(row.epoch),
        )
    return "W2: channels and delay of {J1, J4} against workers per operator", table


def _pruning_table(result: PruningTable) -> Titled:
    table = _table(
        ("targets", "with pruning", "without pruning"),
        ("pruned ms", "paper", "unpruned ms", "paper"),
    )
    for row in result.rows:
        table.add_row(
            ", ".join(row.targets),
            Text("\n".join(row.with_pruning)),
            Text("\n".join(row.without_pruning)),
            _ms(row.pruned),
            f"{row.paper.pruned_ms:,}",
            _ms(row.unpruned),
            f"{row.paper.unpruned_ms:,}",
        )
    return "W5: delay with and without pruning (mean ± standard deviation)", table


def _table(text: Iterable[str], numbers: Iterable[str]) -> Table:
    """An empty table: first the columns of text, then those of numbers."""
    table = Table()
    for name in text:
        table.add_column(name, overflow="fold")
    for name in numbers:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _ms(delays: Delays) -> str:
    mean = f"{delays.mean * 1e3:,.0f}"
    return f"{mean} ± {delays.spread * 1e3:,.0f}" if len(delays.seconds) > 1 else mean


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:,.2f}"
