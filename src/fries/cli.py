"""The command line: ``fries log`` looks into the log of changes of a checkpoint."""

from __future__ import annotations

from importlib.metadata import version
from typing import Annotated

import typer

from fries import cli_log

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False)
app.add_typer(cli_log.app, name="log")


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"fries {version('fries-spark')}")
        raise typer.Exit


@app.callback()
def cli(
    _version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Say which it is."),
    ] = False,
) -> None:
    """Fast and consistent runtime reconfiguration of running dataflows."""


def main() -> None:
    """Run the command line."""
    app()
