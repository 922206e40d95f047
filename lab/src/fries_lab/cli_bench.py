"""The command line: ``fries-lab bench`` runs the paper's experiments on Spark."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from fries.errors import FriesError
from fries_lab.experiments.catalogue import EXPERIMENTS, chosen
from fries_lab.experiments.lab import LOCAL, Lab
from fries_lab.experiments.page import write_page
from fries_lab.experiments.profiles import profile_of
from fries_lab.experiments.runner import Runner


def bench(
    experiments: Annotated[
        list[str] | None, typer.Argument(help=f"Some of {', '.join(EXPERIMENTS)}; or all.")
    ] = None,
    profile: Annotated[
        str, typer.Option(help="quick (two cores, an hour) or paper (a cluster).")
    ] = "quick",
    out: Annotated[Path, typer.Option(help="Where results go.")] = Path("docs/results"),
    data: Annotated[
        Path, typer.Option(help="Where the datasets are; quick makes those that are missing.")
    ] = Path("out/data"),
    parts: Annotated[
        Path, typer.Option(help="Where finished parts are kept; delete it to run them again.")
    ] = Path("out/experiments"),
    master: Annotated[str, typer.Option(help="Spark's master; local is this machine.")] = LOCAL,
) -> None:
    """Run the paper's experiments on Spark, and write tables, figures and a page of results.

    A run that was interrupted goes on where it was.
    """
    console = Console(stderr=True)
    with _clear():
        wanted = chosen(experiments or [])
        size = profile_of(profile)
        lab = Lab(size, parts, data, console, master)
        try:
            Runner(lab, out, console).run(wanted)
        finally:
            lab.close()
        page = write_page(out, size, EXPERIMENTS.values())
        typer.echo(f"wrote {page}")


@contextmanager
def _clear() -> Iterator[None]:
    """One line on what is wrong, and what is kept."""
    try:
        yield
    except FriesError as error:
        _fail(str(error), 2)
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        what = "the disk is full" if full else str(error)
        _fail(f"{what}; finished parts are kept, run it again to go on", 2)
    except KeyboardInterrupt:
        _fail("interrupted; finished parts are kept, run it again to go on", 130)


def _fail(message: str, code: int) -> None:
    typer.echo(f"fries-lab: {message}", err=True)
    raise typer.Exit(code) from None
