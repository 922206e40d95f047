"""Functions travel with the code that their sender holds, whatever the receiver has imported."""

from __future__ import annotations

import dataclasses
import gc
import importlib
import pickle
import subprocess
import sys
import threading
from dataclasses import replace
from types import ModuleType
from typing import Any

import pyarrow as pa
import pytest

from fries.errors import StaleCodeError, UpdateRefusedError
from fries.labels import code_label
from fries.origins import Origins
from fries.runtime import code
from fries.runtime.digests import digest_of
from fries.runtime.spec import Kind, OperatorSpec
from fries.runtime.travelling import Held, own_or_new
from fries.spark.pickling import dumps, dumps_state
from fries.spark.shipping import check_classes, differ_plainly, kept_of
from fries.updates import Revision
from tests.runtime.project import Module, Project, start_anew

OLD = """
import dataclasses, enum, functools
import helping
from helping import grow

RATE = 2
TABLE = {"a": [1]}

def plain(row):
    return row + RATE

def helped(row):
    return grow(row)

def through_a_module(row):
    return helping.grow(row)

def by_its_name(row):
    return getattr(helping, "grow")(row)

@functools.lru_cache(maxsize=7)
def remembered(row):
    return row + RATE

def remembers(row):
    return remembered(row)

class Base:
    def base(self):
        return RATE

@dataclasses.dataclass
class Total(Base):
    sum: int = 0

    def add(self, row):
        self.sum += row + RATE
        return self

    def __call__(self, row):
        return super().base() + row

class Colour(enum.Enum):
    RED = 1
    def shown(self):
        return f"{self.name} {RATE}"

def total(state, row):
    return (state or Total()).add(row)

def coloured(row):
    return Colour.RED.shown()

bound = Total().add
curried = functools.partial(lambda more, row: row + more + RATE, 10)
"""
HELPING = """
def grow(row):
    return row + 1
"""


SPEC = OperatorSpec("A", Kind.PROCESS, pa.schema([]), max)


@pytest.fixture
def edited(project: Project) -> Module:
    """A module whose constant was edited after the worker had imported it, as was its helper."""
    project.write("helping", HELPING)
    project.write("scoring", OLD)
    project.work()
    project.write("helping", HELPING.replace("+ 1", "+ 100"))
    return project.write("scoring", OLD.replace("RATE = 2", "RATE = 300"))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("plain", 305),
        ("helped", 105),
        ("through_a_module", 105),
        ("by_its_name", 105),
        ("remembered", 305),
        ("remembers", 305),
        ("curried", 315),
        ("coloured", "RED 300"),
    ],
)
def test_a_function_of_an_edited_module_is_the_new_one(
    project: Project, edited: Module, name: str, expected: object
) -> None:
    function = getattr(edited, name)
    assert function(5) == expected
    assert project.arrives(function)(5) == expected
    assert project.arrives(lambda row: function(row))(5) == expected
    assert project.arrives({"deep": [function]})["deep"][0](5) == expected


def test_objects_bring_the_new_code_of_their_classes(project: Project, edited: Module) -> None:
    assert project.arrives(edited.Total())(5) == 305, "through super()"
    assert project.arrives(edited.Total(1).add)(5).sum == 306
    assert project.arrives(edited.bound)(5).sum == 305
    assert project.arrives(edited.Total.add)(edited.Total(), 5).sum == 305


def test_a_cache_that_travels_keeps_its_size_and_nothing_else(
    project: Project, edited: Module
) -> None:
    edited.remembered(5)
    sent = project.arrives(edited.remembered)
    assert sent.cache_parameters() == {"maxsize": 7, "typed": False}
    assert sent.cache_info().currsize == 0


def test_a_class_that_was_not_edited_stays_the_receiver_s_own(project: Project) -> None:
    """Else states that were pickled by its name would be of another class."""
    project.write("helping", HELPING)
    project.write("scoring", OLD)
    project.work()
    theirs: Any = project.worker["scoring"]
    ours = project.write("scoring", f"# lines\n\n# move\n{OLD}\n\ndef added(row):\n    return 0\n")
    assert ours.Total is not theirs.Total
    assert project.arrives(ours.Total) is theirs.Total
    assert project.arrives(ours.Colour.RED) is theirs.Colour.RED
    total = project.arrives(ours.total)
    assert type(total(None, 1)) is theirs.Total
    assert total(theirs.Total(5), 1).sum == 8


def test_a_class_whose_helper_was_edited_is_another_one(project: Project) -> None:
    text = "import helping\nclass Grows:\n    def a(self, row):\n        return helping.grow(row)\n"
    project.write("helping", HELPING)
    project.write("growing", text)
    project.work()
    project.write("helping", HELPING.replace("+ 1", "+ 100"))
    ours = project.write("growing", text)
    assert project.arrives(ours.Grows)().a(1) == 101


def test_states_of_a_class_that_came_are_of_one_class_wherever_they_are_read(
    project: Project, edited: Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    total = project.arrives(edited.total)
    state = total(None, 1)
    assert type(state) is not project.worker["scoring"].Total
    again = pickle.loads(dumps(state))
    assert isinstance(again, type(state))
    assert type(project.arrives(edited.total)(again, 1)) is type(state)
    project.work()
    assert type(project.arrives(state)) is type(state), "in this process"
    start_anew(monkeypatch)  # a new driver, and new workers: they import the edited module
    restarted = project.arrives(state)
    assert type(restarted) is edited.Total, "the same code: states are of the imported class"
    assert restarted == edited.Total(301)


def test_a_class_that_came_stays_the_one_if_its_module_can_be_imported_later(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With `spark.addPyFile`, say: else functions would not know the states that are in memory."""
    project.write("helping", HELPING)
    scoring = project.write("scoring", OLD)
    with monkeypatch.context() as lacking:
        lacking.setattr(sys, "path", [one for one in sys.path if one != str(project.folder)])
        importlib.invalidate_caches()
        state = project.arrives(scoring.total)(None, 1)
    assert type(state) is not scoring.Total
    project.work()
    gc.collect()
    again = project.arrives(scoring.total)
    assert type(again(None, 1)) is type(state)
    assert isinstance(pickle.loads(dumps_state(state)), type(state))


def test_a_class_that_was_changed_in_place_is_another_one(project: Project) -> None:
    """As is one whose module was reloaded under it: it finds new globals."""
    project.write("helping", HELPING)
    scoring = project.write("scoring", OLD)
    project.worker = {}
    total, kind = scoring.total, scoring.Total
    (project.folder / "scoring.py").write_text("# nothing")
    importlib.invalidate_caches()
    assert project.arrives(total)(None, 1).sum == 3
    assert project.arrives(kind)()(5) == 7
    scoring.RATE = 300
    assert project.arrives(total)(None, 1).sum == 301
    assert project.arrives(kind)()(5) == 305
    kind.__call__ = lambda self, row: row
    assert project.arrives(kind)()(5) == 5


def test_a_class_that_counts_stays_one_class(project: Project) -> None:
    counting = "COUNT = 0\nclass Counts:\n    def __call__(self, row):\n"
    counting += "        global COUNT\n        COUNT += 1\n        return COUNT\n"
    project.write("counting", counting.replace("0", "100"))
    project.work()
    ours = project.write("counting", counting)
    state = project.arrives(ours.Counts)()
    assert [state(0), state(0)] == [1, 2]
    assert type(pickle.loads(dumps_state(state))) is type(state)


def test_a_class_that_two_threads_bring_at_once_is_one_class() -> None:
    held = Held("nowhere", "Total", b"digest", deep=())
    other: list[object] = []

    def make() -> object:  # meanwhile, another thread is through
        other.append(own_or_new(held, lambda: type("Total", (), {})))
        return type("Total", (), {})

    assert own_or_new(held, make) is other[0]


LOCKED = """
import threading
lock = threading.Lock()
RATE = 1

def locked(row):
    with lock:
        return row + RATE

def calls(row):
    return locked(row)
"""


def test_what_cannot_travel_goes_by_name_and_is_compared(project: Project) -> None:
    project.write("locking", LOCKED)
    project.work()
    same = project.write("locking", LOCKED)
    assert project.arrives(same.calls)(1) == 2
    assert project.arrives(lambda row: same.locked(row))(1) == 2
    other = project.write("locking", LOCKED.replace("RATE = 1", "RATE = 9"))
    for function in (other.locked, other.calls, lambda row: other.calls(row)):
        with pytest.raises(StaleCodeError, match=r"locking\.(locked|calls) is other code here"):
            project.arrives(function)
    project.work()
    assert project.arrives(other.calls)(1) == 10


FILLED = (
    LOCKED
    + """
cache = {}
TABLE = {"a": [1, {2, 3}], "locked": locked}

def fills(row):
    with lock:
        cache[row] = TABLE
    return len(cache)
"""
)


def test_a_cache_that_was_filled_meanwhile_is_no_other_code(project: Project) -> None:
    project.write("locking", FILLED)
    project.work()
    same = project.write("locking", FILLED)
    for row in range(3):
        assert project.arrives(same.fills)(row) == row + 1, "the worker's own, and its cache"
    other = project.write("locking", FILLED.replace("{2, 3}", "{2, 4}"))
    with pytest.raises(StaleCodeError):
        project.arrives(other.fills)


COUNTING = (
    LOCKED
    + """
import functools
COUNT = 0
_model = None

def model():
    global _model
    if _model is None:
        _model = [RATE]
    return _model

def remembering(function, memo={}):
    known = {}
    @functools.wraps(function)
    def inner(row):
        memo[row] = known[row] = 1
        return function(row)
    return inner

@remembering
def counts(row):
    global COUNT
    with lock:
        COUNT += model()[0]
    return COUNT

class Counter:
    instances = 0
    seen = []

    def __init__(self):
        Counter.instances += 1
        self.seen.append(self)
"""
)


def test_what_modules_count_and_load_meanwhile_is_no_other_code(project: Project) -> None:
    project.write("locking", COUNTING)
    project.work()
    same = project.write("locking", COUNTING)
    for row in range(1, 4):
        assert project.arrives(same.counts)(row) == row, "the worker's own"
    theirs: Any = project.worker["locking"].Counter
    for _ in range(3):
        assert type(project.arrives(same.Counter)()) is theirs
    project.work()  # the driver's turn to be a worker, with the state and the code of another
    state = same.Counter()
    assert type(pickle.loads(dumps_state(state))) is same.Counter
    for changed in ("COUNT = 7", "_model = []"):
        name = changed.partition(" =")[0]
        edited = "\n".join(
            changed if line.startswith(f"{name} = ") else line for line in COUNTING.split("\n")
        )
        with pytest.raises(StaleCodeError):
            project.arrives(project.write("locking", edited).counts)


TABLES = (
    LOCKED
    + """
import helping
TABLE = {"grow": [helping.grow]}

def by_table(row):
    with lock:
        return TABLE["grow"][0](row)
"""
)


def test_which_function_comes_first_makes_no_difference(project: Project) -> None:
    project.write("helping", HELPING)
    project.write("locking", TABLES)
    project.work()
    same = project.write("locking", TABLES)
    assert project.arrives(same.locked)(1) == 2
    assert project.arrives(same.by_table)(1) == 2


MANY = """
import abc, functools, typing
T = typing.TypeVar("T")

class Box(typing.Generic[T]):
    def __init__(self, held: T) -> None:
        self.held = held

class Point(typing.NamedTuple):
    x: int
    def moved(self):
        return Point(self.x + 1)

class Shape(abc.ABC):
    @abc.abstractmethod
    def area(self): ...
    @property
    def twice(self):
        return 2 * self.area()

class Square(Shape):
    __slots__ = ("side",)
    def __init__(self, side):
        self.side = side
    def area(self):
        return self.side ** 2 + 1
    @staticmethod
    def unit():
        return Square(1)
    @classmethod
    def of(cls, side):
        return cls(side)

@functools.cache
def fib(n):
    return n if n < 2 else fib(n - 1) + fib(n - 2) + 1

def __getattr__(name):
    if name == "lazy":
        return 41
    raise AttributeError(name)
"""


def test_all_kinds_of_classes_and_functions_travel(project: Project) -> None:
    project.write("many", MANY.replace("+ 1", "+ 0"))
    project.work()
    ours = project.write("many", MANY)
    assert project.arrives(ours.Box)(3).held == 3
    assert project.arrives(ours.Box(4)).held == 4
    assert project.arrives(ours.Point(1)).moved().x == 2
    square = project.arrives(ours.Square(2))
    assert (square.area(), square.twice, type(square).unit().area()) == (5, 10, 2)
    assert project.arrives(ours.Square.of)(3).area() == 10
    assert project.arrives(ours.fib)(3) == ours.fib(3)
    late = project.write("late", "import many\ndef f(row):\n    return many.lazy + row\n")
    assert project.arrives(late.f)(1) == 42


def test_a_module_that_the_receiver_cannot_import_comes_whole(project: Project) -> None:
    project.write("helping", HELPING)
    scoring = project.write("scoring", OLD)
    project.worker = {}
    sent = project.arrives((scoring.total, scoring.through_a_module))
    assert sent[0](None, 1).sum == 3
    assert sent[1](1) == 2


def test_a_class_is_the_same_wherever_it_comes_from_if_its_code_is(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers that cannot import a module know its states again, however often it is reloaded."""
    project.write("helping", HELPING)
    sent = [dumps(project.write("scoring", OLD).total), dumps(project.write("scoring", OLD).total)]
    for name in project.modules():
        del sys.modules[name]
    monkeypatch.setattr(sys, "path", [one for one in sys.path if one != str(project.folder)])
    importlib.invalidate_caches()
    one, other = (pickle.loads(data) for data in sent)
    state = one(None, 1)
    assert type(other(None, 1)) is type(state)
    assert other(state, 1).sum == 6
    data = dumps_state(state)
    start_anew(monkeypatch)
    assert type(pickle.loads(data)) is not type(state)
    assert type(pickle.loads(data)) is type(pickle.loads(sent[1])(None, 1))


def test_what_code_does_not_name_is_missed_loudly(project: Project) -> None:
    project.write("helping", HELPING)
    caller = project.write(
        "caller", "import helping\ndef f(row):\n    return vars(helping), helping\n"
    )
    module = project.arrives(caller.f)(1)[1]
    with pytest.raises(AttributeError, match=r"helping\.grow did not come with the function"):
        module.grow  # noqa: B018 - raises


def test_installed_packages_go_by_name_until_they_are_reloaded(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = project.folder / "site-packages"
    monkeypatch.syspath_prepend(str(folder))
    text = "RATE = 1\ndef f(row):\n    return row + RATE\n"
    text += "class C:\n    def m(self):\n        return RATE\n"
    folder.mkdir()
    path = folder / "installed_one.py"
    path.write_text(text)
    (folder / "installed_two.py").write_text(
        "import installed_one\ndef g(row):\n    return installed_one.f(row)\n"
    )
    one, two = (importlib.import_module(f"installed_{n}") for n in ("one", "two"))
    origins = Origins()
    small = dumps((one.f, one.C, two.g), travels=origins.asking())
    assert len(small) < 120, "by name"
    path.write_text(text.replace("RATE = 1", "RATE = 700") + "\n# longer\n")
    old = {name: ModuleType(name) for name in ("installed_one", "installed_two")}
    vars(old["installed_one"]).update(vars(one))
    importlib.reload(one)
    data = dumps((one.f, one.C(), two.g), travels=origins.asking())
    with monkeypatch.context() as worker:
        for name, module in old.items():
            worker.setitem(sys.modules, name, module)
        f, c, g = pickle.loads(data)
    assert (f(1), c.m(), g(1)) == (701, 700, 701)


def test_where_a_module_is_decides_and_not_what_it_is_called(project: Project) -> None:
    text = "RATE = 1\ndef f(row):\n    return row + RATE\n"
    project.write("sndhdr", text)  # as a module of the standard library is, or was, called
    project.write("target/six_dist/inner", text)
    (project.folder / "target" / "six-1.0.dist-info").mkdir()
    project.work()
    edited = project.write("sndhdr", text.replace("= 1", "= 20"))
    assert project.arrives(edited.f)(1) == 21
    travels = Origins().asking()
    sys.path.insert(0, str(project.folder / "target"))
    try:
        installed = importlib.import_module("six_dist.inner")
        assert not travels(installed.__name__), "pip install --target"
        for name in ("json", "sys", "itertools", "os.path", "numpy.linalg", "fries.flow"):
            importlib.import_module(name)
            assert not travels(name)
        assert not travels("nobody.imported")
    finally:
        sys.path.pop(0)


def test_libraries_travel_by_name() -> None:
    import numpy as np
    import pandas as pd

    held = [np.float64, np.mean, pd.DataFrame, dataclasses.dataclass, threading.Lock, pickle.dumps]
    assert len(dumps(held)) < 400
    assert [pickle.loads(dumps(one)) for one in held] == held
    array = np.arange(100_000)
    parts: list[pickle.PickleBuffer] = []
    assert len(dumps(lambda row: array, parts.append)) < 2_000, "large parts travel beside it"
    assert len(parts) == 1


def test_digests_are_the_same_in_every_process(project: Project) -> None:
    project.write("helping", HELPING)
    project.write("scoring", OLD + "\nNAMES = {'a', 'b', 'c'}\ndef known(x): return x in NAMES\n")
    script = (
        "import sys; sys.path.insert(0, sys.argv[1]); import scoring;"
        "from fries.runtime.code import digest_of;"
        "names = ('Total', 'Colour', 'known', 'helped', 'remembered');"
        "deep = {'scoring', 'helping'}.__contains__;"
        "print(*(digest_of(getattr(scoring, name), deep).hex() for name in names))"
    )
    command = [sys.executable, "-c", script, str(project.folder)]
    runs = [subprocess.run(command, capture_output=True, check=True) for _ in range(2)]
    one, other = (run.stdout.split() for run in runs)
    assert one == other
    assert len(set(one)) == 5, "none is empty"


def test_tables_of_functions_that_use_all_tables_are_looked_at_once(project: Project) -> None:
    """Each on its own would take as many steps as there are ways through them."""
    count = 30
    names = ", ".join(f"T{one}" for one in range(count))
    text = "".join(f"T{one} = {{}}\n" for one in range(count))
    for one in range(count):
        text += f"def f{one}(row):\n    return row, [{names}]\nT{one}['f'] = [f{one}]\n"
    known = project.write("tables", text)
    edited = project.write(
        "tables", text.replace("def f29(row):\n    return row", "def f29(row):\n    return 1")
    )
    digests = {code.digest_of(one.f0, "tables".__eq__) for one in (known, edited)}
    assert len(digests - {b""}) == 2


def test_what_was_sent_is_kept_as_it_was_whatever_is_reloaded(project: Project) -> None:
    """An undo must bring back what ran before, with the helpers and constants it had then."""
    project.write("helping", HELPING)
    scoring = project.write("scoring", OLD)
    update = Revision(scoring.helped, migrate=scoring.plain)
    kept, before = kept_of({"A": update})["A"], digest_of(scoring.helped)
    label = code_label(scoring.helped)
    (project.folder / "scoring.py").write_text(OLD.replace("RATE = 2", "RATE = 300"))
    importlib.reload(scoring)
    scoring.grow = str
    assert project.arrives(kept.function)(5) == 6
    assert project.arrives(kept.migrate)(5) == 7
    assert digest_of(kept.function) == before, "versions are compared by what they do"
    assert digest_of(scoring.helped) != before
    assert code_label(kept.function) == label
    again = kept_of({"A": Revision(kept.function)})["A"]
    assert again.function is kept.function, "an undo of an undo keeps it, too"
    assert kept.spec(SPEC).function is kept.function
    assert not differ_plainly(kept.function, scoring.helped), "the same code, other helpers"
    assert (
        kept.digest != kept_of({"A": Revision(scoring.helped, migrate=scoring.plain)})["A"].digest
    )


def test_a_class_that_is_edited_under_its_states_is_refused(project: Project) -> None:
    project.write("helping", HELPING)
    scoring = project.write("scoring", OLD)
    kept = kept_of({"A": Revision(scoring.total)})["A"]
    text = OLD.replace("return row + RATE", "return row - RATE")  # no method calls that
    check_classes(SPEC, kept, Revision(project.write("scoring", text).total))
    edited = project.write("scoring", OLD.replace("self.sum += row", "self.sum -= row"))
    with pytest.raises(UpdateRefusedError, match=r"scoring\.Total was edited, and states that"):
        check_classes(SPEC, kept, Revision(edited.total))
    check_classes(SPEC, kept, Revision(edited.total, migrate=abs))
    check_classes(replace(SPEC, kind=Kind.MAP), kept, Revision(edited.total))
