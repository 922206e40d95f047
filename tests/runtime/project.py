"""A project's own modules in tests: a worker has imported them, then they are edited."""

from __future__ import annotations

import importlib
import pickle
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, TypeAlias
from weakref import WeakValueDictionary

import pytest
from pyspark.cloudpickle import cloudpickle

from fries.runtime import travelling
from fries.spark.pickling import dumps

Module: TypeAlias = Any
"""One that was written by a test, with whatever it wrote."""


class Project:
    """A project's modules: as a worker has imported them, and as the driver has them now."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.worker: dict[str, ModuleType] = {}

    def write(self, name: str, text: str) -> Module:
        """Write a module and import it: the driver has it."""
        path = self.folder / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        importlib.invalidate_caches()
        full = name.replace("/", ".")
        sys.modules.pop(full, None)
        return importlib.import_module(full)

    def work(self) -> None:
        """From now on the worker has what has been imported."""
        self.worker = dict(self.modules())

    def modules(self) -> dict[str, ModuleType]:
        """The project's modules that are imported now."""
        return {
            name: module
            for name, module in sys.modules.items()
            if str(self.folder) in f"{vars(module).get('__file__')} {vars(module).get('__path__')}"
        }

    def edit(self, texts: Mapping[str, str]) -> None:
        """Write modules, and forget all: the driver imports them again when it needs them."""
        for name, text in texts.items():
            path = self.folder / f"{name}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        importlib.invalidate_caches()
        for name in self.modules():
            del sys.modules[name]

    def arrives(self, value: object) -> Any:  # noqa: ANN401
        """What the worker makes of something that the driver has sent."""
        data = dumps(value)
        with self.in_worker():
            return pickle.loads(data)

    def returns(self, function: object, *arguments: object) -> Any:  # noqa: ANN401
        """What a function that the driver has sent returns, called in the worker."""
        data = dumps(function)
        with self.in_worker():
            return pickle.loads(data)(*arguments)

    @contextmanager
    def in_worker(self) -> Iterator[None]:
        """Be the worker: it keeps what it imports."""
        driver = self.modules()
        for name in driver:
            del sys.modules[name]
        sys.modules.update(self.worker)
        try:
            yield
        finally:
            self.work()
            for name in self.worker:
                del sys.modules[name]
            sys.modules.update(driver)


def start_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget the classes that came, as a new process knows none."""
    monkeypatch.setattr(cloudpickle, "_DYNAMIC_CLASS_TRACKER_BY_ID", {})
    monkeypatch.setattr(travelling, "_came", WeakValueDictionary())
