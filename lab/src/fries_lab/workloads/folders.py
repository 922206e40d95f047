"""A dataset on disk: a folder of whole files, and what it holds written down beside them.

A file is written under another name and then renamed, so a file that is seen is whole. A run
that is interrupted keeps its finished files, and the next one makes the rest. The marker comes
last. Names of all other files begin with an underscore or a dot, which Spark does not read.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from fries_lab.errors import DatasetError

RECIPE: Final = "_recipe.json"
"""What the dataset is made of. Two folders with the same recipe have the same rows."""
COMPLETE: Final = "_COMPLETE"
"""There when all files are."""
UNFINISHED: Final = ".unfinished-"
"""Begins the name of a file that is being written."""


def begin(folder: Path, recipe: Mapping[str, Any]) -> None:
    """Make a folder for a dataset, or take one that such a run has left behind."""
    found = _recipe(folder)
    try:
        if found is None and folder.is_dir() and any(folder.iterdir()):
            raise DatasetError(str(folder), "it has other files in it; choose another folder")
        if found is not None and found != dict(recipe):
            raise DatasetError(
                str(folder),
                f"it was made as {found}, and not as {dict(recipe)}; choose another folder, or "
                "delete it",
            )
        folder.mkdir(parents=True, exist_ok=True)
        for leftover in folder.glob(f"{UNFINISHED}*"):
            shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink()
    except OSError as error:
        raise unwritable(folder, error) from error
    if found is None:
        with whole_file(folder / RECIPE) as path:
            path.write_text(json.dumps(recipe, indent=1) + "\n", encoding="utf-8")


def missing(folder: Path, names: Iterable[str]) -> list[str]:
    """Files that are still to be made."""
    return [name for name in names if not (folder / name).exists()]


def end(folder: Path) -> None:
    """Say that all files are there."""
    with whole_file(folder / COMPLETE) as path:
        path.touch()


def require(folder: Path, kind: str) -> dict[str, Any]:
    """The recipe of a dataset that is there and complete."""
    recipe = _recipe(folder)
    if recipe is None:
        raise DatasetError(str(folder), f"there is no dataset; make it with: fries-lab data {kind}")
    if recipe.get("kind") != kind:
        raise DatasetError(str(folder), f"it holds {recipe.get('kind')}, and not {kind}")
    if not (folder / COMPLETE).exists():
        raise DatasetError(
            str(folder),
            f"it is not complete; the same command again makes the rest: fries-lab data {kind}",
        )
    return recipe


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A name to write to; it becomes the file when all is written, and vanishes if not."""
    other = path.with_name(f"{UNFINISHED}{path.name}-{uuid.uuid4().hex}")
    try:
        yield other
        os.replace(other, path)
    except OSError as error:
        raise unwritable(path, error) from error
    finally:
        other.unlink(missing_ok=True)


@contextmanager
def scratch(folder: Path) -> Iterator[Path]:
    """A folder for files that nobody needs afterwards, on the same disk."""
    try:
        with TemporaryDirectory(prefix=UNFINISHED, dir=folder) as place:
            yield Path(place)
    except OSError as error:
        raise unwritable(folder, error) from error


def bars(console: Console) -> Progress:
    """How progress is shown: not at all where nobody looks, in a log file for instance."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )


def unwritable(path: Path, error: OSError) -> DatasetError:
    """Why something cannot be written, and what is kept."""
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    problem = "the disk is full" if full else f"it cannot be written ({error.strerror or error})"
    return DatasetError(str(path), f"{problem}; finished files are kept, run it again to go on")


def _recipe(folder: Path) -> dict[str, Any] | None:
    try:
        found: dict[str, Any] = json.loads((folder / RECIPE).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise DatasetError(str(folder), f"its {RECIPE} cannot be read: {error}") from error
    return found
