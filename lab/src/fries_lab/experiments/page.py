"""The page of results: every table and figure, what the paper says, what was found."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, TypeAlias

from fries_lab.experiments.comparisons import METHOD
from fries_lab.experiments.experiment import Experiment, Table
from fries_lab.experiments.lab import write_whole
from fries_lab.experiments.profiles import Profile

NAME: Final = "README.md"
_Measured: TypeAlias = "tuple[Experiment, dict[str, Any]]"
"""An experiment with its record."""


def write_page(out: Path, profile: Profile, experiments: Iterable[Experiment]) -> Path:
    """Write the page for all experiments of a profile that have a record; where it is."""
    found = [
        (experiment, record)
        for experiment in experiments
        if (record := _record(out / profile.name / f"{experiment.name}.json")) is not None
    ]
    path = out / profile.name / NAME
    alike = len({_machines([one]) for one in found}) < 2
    sections = [_section(*one, path.parent, "" if alike else _measured([one])) for one in found]
    text = "\n".join([_head(profile, found, alike), *sections])
    write_whole(path, lambda new: new.write_text(text, "utf-8"))
    return path


def _record(path: Path) -> dict[str, Any] | None:
    """A record, unless it is older than what a page says of each."""
    try:
        record: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return None
    return record if "measured" in record else None


def _head(profile: Profile, found: list[_Measured], alike: bool) -> str:
    contents = "\n".join(f"- [{one.title}](#{_anchor(one.title)}): {one.paper}" for one, _ in found)
    return f"""# Results: the paper's experiments on Spark, profile `{profile.name}`

{_measured(found)}{"" if alike else " Each section says which of them are its own."}

Each section has what was found, figures and tables with the paper's numbers beside (and simulated
ones where there are), and how it was measured. The paper measured on Flink with ten machines of
four cores: compare the order of delays and their ratios, not milliseconds. Beside each section is
a record (JSON) with every single measurement. Written by
`fries-lab bench --profile {profile.name}`; do not edit.

{METHOD}

{contents}
"""


def _measured(found: list[_Measured]) -> str:
    """Where and when, and for how long."""
    if not found:
        return "Nothing was measured yet."
    days = sorted(day[:10] for _, record in found for day in record["measured"]["days"])
    when = days[0] if days[0] == days[-1] else f"{days[0]} to {days[-1]}"
    minutes = sum(record["measured"]["seconds"] for _, record in found) / 60
    return f"Measured on {when}, for {minutes:,.0f} minutes, on: {'; '.join(_machines(found))}."


def _machines(found: list[_Measured]) -> tuple[str, ...]:
    """All machines and commits, each once."""
    every = (_machine(one) for _, record in found for one in record["measured"]["machines"])
    return tuple(dict.fromkeys(every))


def _machine(machine: Mapping[str, Any]) -> str:
    return (
        f"{machine['cores']} cores of {machine['cpu']}, {machine['system']}, Spark "
        f"{machine['spark']}, Python {machine['python']}, Fries {machine['fries']} at commit "
        f"{machine['commit']}"
    )


def _section(experiment: Experiment, record: Mapping[str, Any], folder: Path, measured: str) -> str:
    report = record["report"]
    lines = [f"## {experiment.title}", "", f"Paper: {experiment.paper}.", ""]
    lines += [report["verdict"], ""]
    if (folder / f"{experiment.name}.png").exists():
        lines += [f"![{experiment.title}]({experiment.name}.png)", ""]
    lines += [Table(**table).markdown() for table in report["tables"]]
    if report["scaling"]:
        lines += [f"How it was measured: {report['scaling']}", ""]
    if measured:
        lines += [measured, ""]
    lines += [f"Record: [{experiment.name}.json]({experiment.name}.json)", ""]
    return "\n".join(lines)


def _anchor(title: str) -> str:
    """The link that Markdown readers give a heading."""
    return re.sub(r"[^a-z0-9 -]", "", title.lower()).replace(" ", "-")
