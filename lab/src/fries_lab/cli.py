"""The command line: ``fries-lab simulate``, ``plan``, ``data`` and ``bench``."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Final, NoReturn

import typer
from rich.console import Console

from fries.errors import FriesError
from fries.graph import Graph
from fries.schedulers import scheduler as find_scheduler
from fries_lab import cli_bench, cli_data
from fries_lab.bench import plots, tables
from fries_lab.bench.pool import Pool
from fries_lab.bench.simulated import EXPERIMENTS, Result
from fries_lab.workloads import graphs
from fries_lab.workloads.simulated import FULL, PAPER_WORKERS, QUICK, Scale

GRAPHS: Final[dict[str, Callable[[int], Graph]]] = {
    "W1": graphs.w1,
    "W2": graphs.w2,
    "W3": graphs.w3,
    "W4": graphs.w4,
    "W5": graphs.w5,
}
PIPE_WIDTH: Final = 120
"""Columns where there is no terminal to ask: the widest table fits without folding."""

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False)
app.add_typer(cli_data.app, name="data")
app.command()(cli_bench.bench)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"fries-lab {version('fries-lab')}")
        raise typer.Exit


@app.callback()
def cli(
    _version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Say which it is."),
    ] = False,
) -> None:
    """The experiments of the Fries paper: simulated, and measured on Spark."""


@app.command()
def simulate(
    workflows: Annotated[list[str], typer.Argument(help="W1 to W5, or all.")],
    jobs: Annotated[
        int, typer.Option(min=1, help="Processes; the results do not depend on it.")
    ] = os.cpu_count() or 1,
    seed: Annotated[int, typer.Option(help="Seed of costs, skew and stragglers.")] = 0,
    out: Annotated[Path, typer.Option(help="Where figures and records go.")] = Path(
        "out/simulated"
    ),
    quick: Annotated[
        bool, typer.Option("--quick", help="Few workers, short runs: only to try it out.")
    ] = False,
) -> None:
    """Simulate the paper's experiments and print its tables beside its own numbers."""
    names = _workflows(workflows)
    _writable(out)
    scale = QUICK if quick else FULL
    console = _console()
    try:
        with Pool(jobs, Console(stderr=True)) as run:
            for name in names:
                result = EXPERIMENTS[name](run, scale, seed)
                console.print(tables.render(name, result, scale))
                record = _record(name, result, scale, seed, out)
                for path in (*plots.draw(name, result, scale, out), record):
                    console.print(f"wrote {path}", markup=False, highlight=False, soft_wrap=True)
    except BrokenProcessPool:
        _fail("a worker process was killed (out of memory?); try it with --jobs 1")
    except (FriesError, OSError) as error:
        _fail(str(error))


@app.command()
def plan(
    workflow: Annotated[str, typer.Argument(help="W1 to W5.")],
    targets: Annotated[list[str], typer.Argument(help="Operators to update, such as J5 J6.")],
    scheduler: Annotated[str, typer.Option(help="Name of a scheduler.")] = "fries",
    workers: Annotated[int, typer.Option(min=1, help="Workers per operator.")] = PAPER_WORKERS,
    dot: Annotated[bool, typer.Option("--dot", help="Print it in Graphviz DOT.")] = False,
    mermaid: Annotated[bool, typer.Option("--mermaid", help="Print it as Mermaid.")] = False,
) -> None:
    """Print how a scheduler would reconfigure some operators of a workflow."""
    if dot and mermaid:
        _fail("choose one of --dot and --mermaid")
    (name,) = _workflows([workflow], plural=False)
    try:
        found = find_scheduler(scheduler)(GRAPHS[name](workers), targets)
    except FriesError as error:
        _fail(str(error))
    typer.echo(found.to_dot() if dot else found.to_mermaid() if mermaid else str(found))


def main() -> None:
    """Run the command line."""
    app()


def _workflows(given: list[str], *, plural: bool = True) -> list[str]:
    """The workflows that were asked for, each once and in order."""
    names = {name.upper() for name in given}
    if plural and "ALL" in names:
        names = names - {"ALL"} | set(GRAPHS)
    unknown = sorted(names - set(GRAPHS))
    if unknown:
        choices = ", ".join([*GRAPHS, "all"] if plural else GRAPHS)
        _fail(f"there is no workflow {', '.join(unknown)}; choose from {choices}")
    return sorted(names)


def _writable(out: Path) -> None:
    """Make sure, before anything is simulated, that its results can be kept."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=out):
            pass
    except OSError as error:
        _fail(f"cannot write to {out}: {error.strerror}")


def _record(name: str, result: Result, scale: Scale, seed: int, out: Path) -> Path:
    """Keep everything that was found, as JSON."""
    record = {
        "workflow": name,
        "simulated": True,
        "tuple": tables.TUPLE[name],
        "notes": tables.NOTES[name],
        "seed": seed,
        "scale": asdict(scale),
        "result": asdict(result),
    }
    path = out / f"{name.lower()}.json"
    path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return path


def _console() -> Console:
    console = Console()
    return console if console.is_terminal else Console(width=PIPE_WIDTH)


def _fail(message: str) -> NoReturn:
    """One line on what is wrong, and exit code 2."""
    typer.echo(f"fries-lab: {message}", err=True)
    raise typer.Exit(2)
