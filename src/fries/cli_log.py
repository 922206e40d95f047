"""The command line: ``fries log`` looks into the log of changes of a checkpoint, without Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final, NoReturn

import typer

from fries.errors import FriesError
from fries.log.check import Findings, examine, repair
from fries.log.files import COPIES, FOLDER, LocalFiles
from fries.log.reading import Reading

DAMAGED: Final = 1
"""Exit code of a check that finds something."""

app = typer.Typer(no_args_is_help=True, help="Look into the log of changes of a checkpoint.")
Checkpoint = Annotated[Path, typer.Argument(help="The checkpointLocation, on this machine.")]


@app.command()
def check(checkpoint: Checkpoint) -> None:
    """Say which changes the log has and what of it is damaged; changes nothing."""
    try:
        found = examine(Reading(*_folders(checkpoint)))
    except FriesError as error:
        _fail(str(error))
    _show(found)
    if not found.sound:
        raise typer.Exit(DAMAGED)


@app.command(name="repair")
def mend(
    checkpoint: Checkpoint,
    take_back: Annotated[
        int | None,
        typer.Option(help="Take a change back whose functions are lost, by its number."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Even if a driver may run.")] = False,
) -> None:
    """Write again what is known from the second copy, and copy what has none."""
    folders = _folders(checkpoint)
    try:
        for line in repair(*folders, take_back, force):
            typer.echo(line)
        found = examine(Reading(*folders))
    except FriesError as error:
        _fail(str(error))
    _show(found)
    if found.lost:
        raise typer.Exit(DAMAGED)


def _folders(checkpoint: Path) -> tuple[LocalFiles, LocalFiles]:
    return LocalFiles(checkpoint / FOLDER), LocalFiles(checkpoint / COPIES)


def _show(found: Findings) -> None:
    for line in found.changes:
        typer.echo(line)
    for problem in found.lost:
        typer.echo(f"damaged: {problem}")
    for problem in found.known:
        typer.echo(f"mended at the next start: {problem}")
    if found.uncopied:
        typer.echo(f"records without a copy: {found.uncopied}")
    for way in found.ways:
        typer.echo(f"way out: {way}")
    if found.sound:
        typer.echo("the log is whole")


def _fail(message: str) -> NoReturn:
    """One line on what is wrong, and exit code 2."""
    typer.echo(f"fries: {message}", err=True)
    raise typer.Exit(2)
