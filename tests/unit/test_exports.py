"""What the package shows to the world, and what importing it costs."""

import subprocess
import sys
from importlib.metadata import version

import fries


def test_every_public_name_is_there() -> None:
    assert len(set(fries.__all__)) == len(fries.__all__)
    for name in fries.__all__:
        assert getattr(fries, name) is getattr(fries, name), "found once, then kept"


def test_public_names_are_the_only_public_ones() -> None:
    assert dir(fries) == sorted(fries.__all__)


def test_the_package_says_which_version_it_is() -> None:
    assert fries.__version__ == version("fries-spark")


def test_unknown_names_are_refused() -> None:
    assert not hasattr(fries, "no_such_name")


def test_importing_the_package_loads_no_library() -> None:
    script = "import fries, sys; print({'networkx', 'numpy', 'pyspark', 'rich'} & set(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "set()"
