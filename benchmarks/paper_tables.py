"""The paper's tables of delays on a local Spark, as records in ``out/``: ``make paper-tables``."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Final

from rich.console import Console

from benchmarks.spark import session
from fries.bench.live_tables import QUICK, pruning, steps, tpcds_delays
from fries.workloads import generate, tpcds
from fries.workloads.folders import bars

OUT: Final = Path("out/measured")


def main() -> None:
    """Make the data, run what has no record yet, and keep each record when it is there."""
    console = Console(stderr=True)
    spark = session()
    tables, payments = OUT / f"tpcds-{QUICK.scale:g}", OUT / "payments"
    tpcds.write_tpcds(tables, QUICK.scale, console)
    generate.write_payments(spark, payments, QUICK.payments, console=console)
    for run, data in ((pruning, payments), (tpcds_delays, tables)):
        path = OUT / f"{run.__name__}.json"
        if path.exists():
            console.print(f"{path} is there")
            continue
        with bars(console) as progress:
            bar = progress.add_task(run.__name__, total=steps(run.__name__, QUICK))
            record = run(spark, data, QUICK, partial(progress.advance, bar))
        path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        console.print(f"wrote {path}")
    spark.stop()


if __name__ == "__main__":
    main()
