"""The page of results: every table and figure, what the paper says, what was found."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from fries.experiments.experiment import Experiment, Table
from fries.experiments.lab import write_whole
from fries.experiments.profiles import Profile

NAME: Final = "README.md"


def write_page(out: Path, profile: Profile, experiments: Iterable[Experiment]) -> Path:
    """Write the page for all experiments of a profile that have a record; where it is."""
    found = [
        (experiment, record)
        for experiment in experiments
        if (record := _record(out / profile.name / f"{experiment.name}.json")) is not None
    ]
    path = out / profile.name / NAME
    text = "\n".join([_head(profile, found), *(_section(*one, path.parent) for one in found)])
    write_whole(path, lambda new: new.write_text(text, "utf-8"))
    return path


def _record(path: Path) -> dict[str, Any] | None:
    try:
        record: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return None
    return record


def _head(profile: Profile, found: list[tuple[Experiment, dict[str, Any]]]) -> str:
    machines = {json.dumps(record["machine"], sort_keys=True) for _, record in found}
    seen = "; ".join(_machine(json.loads(one)) for one in sorted(machines))
    contents = "\n".join(f"- [{one.title}](#{_anchor(one.title)}): {one.paper}" for one, _ in found)
    return f"""# Results: the paper's experiments on Spark, profile `{profile.name}`

Written by `fries bench --profile {profile.name}`; do not edit. Measured on: {seen}. Each section
has the paper's result, the simulated one and the measured one where there are such, how much
smaller than the paper's it was run, and what agrees. The paper measured on Flink with ten
machines of four cores: compare the order of delays and their ratios, not milliseconds. Beside
each section is a record (JSON) with every single measurement.

{contents}
"""


def _machine(machine: Mapping[str, Any]) -> str:
    return f"{machine['cores']} cores, {machine['system']}, Python {machine['python']}"


def _section(experiment: Experiment, record: Mapping[str, Any], folder: Path) -> str:
    report = record["report"]
    lines = [f"## {experiment.title}", "", f"Paper: {experiment.paper}.", ""]
    lines += [report["verdict"], "", report["scaling"], ""]
    if (folder / f"{experiment.name}.png").exists():
        lines += [f"![{experiment.title}]({experiment.name}.png)", ""]
    lines += [Table(**table).markdown() for table in report["tables"]]
    lines += [f"Record: [{experiment.name}.json]({experiment.name}.json)", ""]
    return "\n".join(lines)


def _anchor(title: str) -> str:
    """The link that Markdown readers give a heading."""
    return re.sub(r"[^a-z0-9 -]", "", title.lower()).replace(" ", "-")
