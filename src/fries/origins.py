"""Where modules come from: whose code a change must bring, and whose every worker has.

Code of installed packages is on the workers; a function of one travels by its name. Everything
else (a project's own modules, a notebook's, editable installs, ``--py-files``) is under
development: a worker may have imported it before it was edited, so it travels by value. So does
an installed package of which a module was reloaded here.
"""

from __future__ import annotations

import site
import sys
import sysconfig
import threading
from collections.abc import Callable
from functools import cache
from importlib import import_module
from importlib.machinery import EXTENSION_SUFFIXES
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Final

OURS: Final = frozenset({"fries", "pyspark", "py4j", "__main__", "__mp_main__"})
"""Packages that workers have as the driver has them, and what cloudpickle sends by value itself."""
SITES: Final = frozenset({"site-packages", "dist-packages"})


class Origins:
    """Which modules are under development, as far as this process can tell."""

    def __init__(self) -> None:
        self._specs: dict[str, object] = {}
        """By module, its specification: reloading it makes another one."""
        self._edited: frozenset[str] = frozenset()
        """Installed packages of which a module was reloaded."""
        self._lock = threading.Lock()
        self.look()

    def look(self) -> None:
        """See what has been imported, and what was reloaded, since the last look."""
        with self._lock:
            reloaded = set()
            for name, module in tuple(sys.modules.items()):
                spec = getattr(module, "__spec__", None)
                if self._specs.setdefault(name, spec) is not spec:
                    reloaded.add(name.partition(".")[0])
            if reloaded - self._edited:
                self._edited = _users_of(self._edited | reloaded)

    def asking(self) -> Callable[[str], bool]:
        """Tells whether code of a module, by its name, is sent by value.

        Looks for reloaded modules when the first installed one is asked for, and then no more:
        there are thousands of modules, and most changes name none that is installed.
        """
        looked = False

        def travels(module: str) -> bool:
            nonlocal looked
            package = module.partition(".")[0]
            if module not in sys.modules or package in OURS:
                return False  # cloudpickle knows what nobody can import
            if not _is_installed(module):
                return True
            if package in sys.stdlib_module_names:
                return False
            if not looked:
                looked = True
                self.look()
            return package in self._edited

        return travels


def users_module(name: str) -> ModuleType | None:
    """A module that code imports when it runs; imported now, if it is the user's own.

    ``None`` if this process cannot import it, or it is an installed one that nobody imported.
    """
    if name in sys.modules:
        return sys.modules[name]
    package, (above, _, last) = name.partition(".")[0], name.rpartition(".")
    try:
        if hasattr(sys.modules.get(above), last) or _will_be_installed(package):
            return None
        return import_module(name)
    except (Exception, SystemExit):  # the user's module may raise anything
        return None


def _will_be_installed(package: str) -> bool:
    """Whether a package is Python's or a library's, wherever one has to look for that."""
    if package in OURS or package in sys.stdlib_module_names:
        return True
    if package in sys.modules:
        return _is_installed(package)
    spec = find_spec(package)
    file = (
        None if spec is None else spec.origin or next(iter(spec.submodule_search_locations or ()))
    )
    return file is None or _is_file_installed(file, package)


@cache
def _is_installed(name: str) -> bool:
    module = sys.modules[name]
    file = getattr(module, "__file__", None) or next(iter(getattr(module, "__path__", ())), None)
    if not isinstance(file, str):  # built in, or made by another module or by hand
        parent = name.rpartition(".")[0]
        is_part = parent in sys.modules and _is_installed(parent)
        return is_part or name in sys.stdlib_module_names
    return _is_file_installed(file, name)


def _is_file_installed(file: str, name: str) -> bool:
    if file.startswith("<frozen") or file.endswith(tuple(EXTENSION_SUFFIXES)):
        return True
    path = Path(file)
    return not SITES.isdisjoint(path.parts) or _is_below(path, name)


def _is_below(path: Path, name: str) -> bool:
    """Whether a module is in a folder that pip or the system installs into."""
    if any(path.is_relative_to(root) for root in _roots()):
        return True
    depth = name.count(".") + (path.name == "__init__.py" or not path.suffix)
    return len(path.parents) > depth and _has_distributions(path.parents[depth])


@cache
def _roots() -> tuple[Path, ...]:
    kinds = ("stdlib", "platstdlib", "purelib", "platlib")
    paths = [sysconfig.get_path(kind) for kind in kinds]
    paths += [*site.getsitepackages(), site.getusersitepackages()]
    return tuple(Path(path) for path in paths if path)


@cache
def _has_distributions(folder: Path) -> bool:
    """Whether a folder was filled by ``pip install --target``, or alike."""
    try:
        return any(folder.glob("*.dist-info"))
    except OSError:
        return False


def _users_of(edited: set[str] | frozenset[str]) -> frozenset[str]:
    """Packages that were edited, and those that hold something of theirs: they would call it."""
    found = set(edited)
    while True:
        more = {
            package
            for name, module in tuple(sys.modules.items())
            if (package := name.partition(".")[0]) not in found and _holds(module, found)
        }
        if not more:
            return frozenset(found)
        found |= more


def _holds(module: object, packages: set[str]) -> bool:
    for value in tuple(getattr(module, "__dict__", {}).values()):
        home = value.__name__ if isinstance(value, ModuleType) else _home(value)
        if home and home.partition(".")[0] in packages:
            return True
    return False


def _home(value: object) -> str:
    home = getattr(value, "__module__", None) if callable(value) else None
    return home if isinstance(home, str) else ""


ORIGINS: Final = Origins()
"""Of this process: looked at first when Fries is imported."""
