"""The engine on Spark: how fast a change arrives, and what flows cost when nothing changes.

``make bench-engine`` runs it, about 16 minutes. Everything compared is measured in one run.
Tables are printed; a JSON record and a plot are kept in ``out/``.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from benchmarks.delays import WORKERS, Delay, answer_p99, delays, stall_p99
from benchmarks.engine_plot import plot
from benchmarks.memory import Memory, memory
from benchmarks.model import Swap, swap
from benchmarks.spark import session
from benchmarks.states import TOTALS, Size, state_size
from benchmarks.throughput import SIZES, Rate, keyed, stateless

OUT: Final = Path("out")
PARTS: Final = ("memory", "throughput", "states", "model", "delays")


def main() -> None:
    """Run everything, or the parts that are named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", help=f"some of {', '.join(PARTS)}; all if none")
    chosen = parser.parse_args().parts or list(PARTS)
    if unknown := set(chosen) - set(PARTS):
        parser.error(f"there is no part {', '.join(sorted(unknown))}")
    console = Console(width=110)
    spark = session()
    record: dict[str, Any] = {}
    if "memory" in chosen:  # before the workers have done anything else
        peaks = memory(spark)
        record["memory"] = [asdict(peak) for peak in peaks]
        console.print(_memory_table(peaks))
    if "throughput" in chosen:
        rates = {"stateless": stateless(spark)}
        for rows, batches in SIZES:
            rates[f"keyed, {rows:,} rows and keys a batch"] = keyed(spark, rows, batches)
        record["throughput"] = {name: [asdict(r) for r in found] for name, found in rates.items()}
        for name, found in rates.items():
            console.print(_rates_table(name, found))
    if "states" in chosen:
        sizes = [state_size(spark, keys) for keys in TOTALS]
        record["states"] = [asdict(size) for size in sizes]
        console.print(_sizes_table(sizes))
    if "model" in chosen:
        swapped = swap(spark)
        record["model"] = asdict(swapped)
        console.print(_swap_table(swapped))
    if "delays" in chosen:
        found_delays = delays(spark)
        record["delays"] = [asdict(delay) for delay in found_delays]
        console.print(_delays_table(found_delays))
        answers = {str(count): answer_p99(count) for count in (0, *WORKERS)}
        record["answer_p99_ms"] = answers
        said = ", ".join(f"{ms:.1f} ms with {count}" for count, ms in answers.items())
        console.print(f"p99 of a message and its answer, by number of busy processes: {said}")
        usual, more = stall_p99(WORKERS[0])
        record["stall_ms"] = {"usual": usual, "more_at_p99": more}
        console.print(
            f"a computation of {usual:.1f} ms beside a busy process takes {more:.1f} ms more at p99"
        )
    spark.stop()
    _keep(record)
    console.print(f"kept in {OUT / 'bench-engine.json'} and {OUT / 'bench-engine.png'}")


def _keep(record: dict[str, Any]) -> None:
    """Write the record; parts that were not run keep what an earlier run found."""
    OUT.mkdir(parents=True, exist_ok=True)
    path = OUT / "bench-engine.json"
    kept = json.loads(path.read_text()) if path.exists() else {}
    kept.update(record)
    path.write_text(json.dumps(kept, indent=2) + "\n")
    plot(kept, OUT / "bench-engine.png")


def _rates_table(name: str, rates: list[Rate]) -> Table:
    table = Table(name, "rows/s", "the flow is ... times as fast", title="without any change")
    for rate in rates:
        table.add_row(rate.what, f"{rate.rows_per_second:,.0f}", f"{rate.flow_is_times:.2f}")
    return table


def _sizes_table(sizes: list[Size]) -> Table:
    table = Table(
        "keys in state", "keys touched", "s per batch", "ratio", title="batches and the state"
    )
    for size in sizes:
        ratio = size.batch_seconds / sizes[0].batch_seconds
        cells = f"{size.keys:,}", f"{size.touched:,}", f"{size.batch_seconds:.2f}", f"{ratio:.2f}"
        table.add_row(*cells)
    return table


def _memory_table(peaks: list[Memory]) -> Table:
    table = Table("flow", "rows", "peak of a worker, MB", title="memory")
    for peak in peaks:
        table.add_row(peak.flow, f"{peak.rows:,}", f"{peak.peak_mb:,.0f}")
    return table


def _swap_table(found: Swap) -> Table:
    title = f"a model of {found.megabytes} MB, switched after {found.prepare_and_switch_ms:.0f} ms"
    table = Table("ms", "before", "during", title=title)
    for name in ("latency_p50_ms", "latency_p99_ms", "latency_max_ms", "gap_max_ms"):
        before, during = getattr(found, name)
        table.add_row(name.removesuffix("_ms").replace("_", " "), f"{before:.1f}", f"{during:.1f}")
    table.add_row("tuples", *(f"{count:,}" for count in found.tuples))
    lowest, highest = found.noise_p99_ms
    table.caption = f"p99 of windows before that are as long: {lowest:.1f} to {highest:.1f} ms"
    return table


def _delays_table(found: list[Delay]) -> Table:
    table = Table(
        "ms per row",
        "scheduler",
        "busy workers",
        "changes",
        "p50 ms",
        "p99 ms",
        "commit to switch, p99 ms",
        title="delay of a change of two operators, request to last switch",
    )
    for row in found:
        switch = "" if row.switch_p99_ms is None else f"{row.switch_p99_ms:.1f}"
        cells = f"{row.cost_ms:g}", row.scheduler, str(row.workers), str(row.changes)
        table.add_row(*cells, f"{row.p50_ms:,.1f}", f"{row.p99_ms:,.1f}", switch)
    return table


if __name__ == "__main__":
    main()
