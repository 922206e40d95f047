"""The command line: ``fries-lab data`` makes the datasets of the experiments."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from fries.errors import FriesError
from fries_lab.workloads import card_csv, folders, generate, tpcds
from fries_lab.workloads.payments import Payments

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PAPER_ROWS: Final = 24_000_000
"""Payments in the paper's dataset 1."""
PAPER_SCALE: Final = 100.0
"""Scale factor of the paper's dataset 3."""

app = typer.Typer(no_args_is_help=True, help="Make the datasets of the experiments.")
Folder = Annotated[Path, typer.Argument(help="Where it goes; an interrupted run goes on there.")]


@app.command()
def payments(
    folder: Folder,
    rows: Annotated[
        int | None, typer.Option(min=1, help=f"How many payments; {PAPER_ROWS:,} by default.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Another seed, other payments.")] = None,
    csv: Annotated[
        Path | None,
        typer.Option(help="The real payments (card_transaction.v1.csv), instead of made-up ones."),
    ] = None,
    master: Annotated[str, typer.Option(help="Spark's master.")] = "local[*]",
) -> None:
    """Dataset 1: card payments with 12 attributes, made up or real."""
    with _clear():
        if csv is not None:
            if rows is not None or seed is not None:
                raise ValueError("--csv takes all payments of the file: no --rows and no --seed")
            count = card_csv.write_csv(csv, folder)
            typer.echo(f"{count:,} payments of {csv.name} are in {folder}")
            return
        with _spark(master) as spark:
            generate.write_payments(spark, folder, rows or PAPER_ROWS, Payments(seed or 0))


@app.command()
def users(
    source: Annotated[Path, typer.Argument(help="A dataset 1.")],
    folder: Folder,
    master: Annotated[str, typer.Option(help="Spark's master.")] = "local[*]",
) -> None:
    """Dataset 2: the payments of a dataset 1, grouped per user."""
    with _clear():
        folders.require(source, generate.PAYMENTS)  # before Spark takes its time to start
        with _spark(master) as spark:
            generate.write_users(spark, source, folder)


@app.command(name=tpcds.KIND)
def tpcds_tables(
    folder: Folder,
    scale: Annotated[float, typer.Option(help="Scale factor, such as 0.01.")] = PAPER_SCALE,
) -> None:
    """Dataset 3: tables of TPC-DS, with the answers to queries 40 and 71."""
    with _clear():
        tpcds.write_tpcds(folder, scale)


@contextmanager
def _spark(master: str) -> Iterator[SparkSession]:
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master(master).appName("fries-lab data")
    for name, value in {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",  # there is one already
        "spark.log.level": "ERROR",
    }.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    try:
        yield session
    finally:
        session.stop()


@contextmanager
def _clear() -> Iterator[None]:
    """One line on what is wrong, and exit code 2; on Ctrl-C, what is kept."""
    try:
        yield
    except (FriesError, ValueError) as error:
        typer.echo(f"fries-lab: {error}", err=True)
        raise typer.Exit(2) from None
    except KeyboardInterrupt:
        typer.echo(
            "fries-lab: interrupted; finished files are kept, run it again to go on", err=True
        )
        raise typer.Exit(130) from None
