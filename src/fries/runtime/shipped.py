"""What a change ships to workers, and how little of it must travel.

Every worker knows the operators as the flow was built. A new version differs in its functions, and
now and then in its columns: only that is pickled, in plain tuples, for which Python's pickler calls
nobody. It is most of the time between a request and the first word to a worker.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import pyarrow as pa

from fries.runtime.spec import Function, OperatorSpec, Style

Version: TypeAlias = (
    "tuple[Function | None, Function | None, str, pa.Schema | None, pa.Schema | None]"
)
"""Function, result, style; the columns that it gives and gets, ``None`` if they are as built."""
Table: TypeAlias = "Mapping[str, Function | None]"
"""By operator."""
Bare: TypeAlias = "tuple[dict[str, Version], Table, frozenset[int], Table, int]"
"""What travels: versions, migrations, entries, inverses, and which change it takes back."""


@dataclass(frozen=True)
class Shipped:
    """What a change ships to workers: new versions, and where rows enter its components.

    When later changes have replaced all its versions, the migrations are left.
    """

    operators: Mapping[str, OperatorSpec]
    migrations: Table = field(default_factory=dict)
    entries: frozenset[int] = frozenset()
    """Numbers of the edges over which rows enter a component; there they are stamped."""
    inverses: Table = field(default_factory=dict)
    """What would bring states back: for whoever undoes the change, not for workers."""
    undoes: int = 0
    """The change that it takes back; 0: none."""

    def bare(self, built: Mapping[str, OperatorSpec]) -> Bare:
        """What is to be pickled, for those who know the operators as the flow was built."""
        versions = {name: _version(spec, built[name]) for name, spec in self.operators.items()}
        return versions, self.migrations, self.entries, self.inverses, self.undoes

    @classmethod
    def of(cls, bare: Bare, built: Mapping[str, OperatorSpec]) -> Shipped:
        """The same at its destination."""
        versions, migrations, entries, inverses, *undoes = bare  # older logs have no more
        operators = {name: _spec(built[name], *version) for name, version in versions.items()}
        return cls(operators, migrations, entries, inverses, *undoes)


def _version(spec: OperatorSpec, built: OperatorSpec) -> Version:
    return (
        spec.function,
        spec.result,
        spec.style.value,
        None if spec.schema == built.schema else spec.schema,
        None if spec.takes == built.takes else spec.takes,
    )


def _spec(
    built: OperatorSpec,
    function: Function | None,
    result: Function | None,
    style: str,
    gives: pa.Schema | None,
    takes: pa.Schema | None,
) -> OperatorSpec:
    return replace(
        built,
        function=function,
        result=result,
        style=Style(style),
        schema=built.schema if gives is None else gives,
        takes=built.takes if takes is None else takes,
    )
