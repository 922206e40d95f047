"""Whether a function does nothing with its row but look up columns.

Most filters and splits are so (``lambda row: row["amount"] > 100``). They can neither change nor
keep a row, so they need no copy of it. Whatever is not surely so gets one: what Python makes of
the same source may differ in its next version, and then there is just a copy too many.
"""

from __future__ import annotations

import dis
from itertools import islice
from types import CodeType, FunctionType
from typing import Final

from fries.runtime.spec import Function

_LOADS: Final = {"LOAD_FAST", "LOAD_FAST_BORROW"}
_REACH_ALL: Final = {"locals", "vars", "dir", "eval", "exec"}
"""Builtins that have a way to all variables of a function."""


def only_reads(function: Function) -> bool:
    """Whether a function surely does no more with its row than ``row["column"]``."""
    if type(function) is not FunctionType or _REACH_ALL & {*function.__code__.co_names}:
        return False
    code = function.__code__
    return code.co_argcount > 0 and _looks_up(code, code.co_varnames[0])


def _looks_up(code: CodeType, row: str) -> bool:
    steps = list(dis.get_instructions(code))
    following = zip(steps, islice(steps, 1, None), islice(steps, 2, None), strict=False)
    looked_up = sum(
        one.opname in _LOADS and _names(one, row) and _is_column(column) and _is_lookup(lookup)
        for one, column, lookup in following
    )
    return looked_up == sum(_names(one, row) for one in steps)


def _names(step: dis.Instruction, row: str) -> bool:
    """Whether a step does something with the variable; some have two of them."""
    if step.opcode in dis.hasconst:
        return False
    variables = step.argval if isinstance(step.argval, tuple) else (step.argval,)
    return any(one == row for one in variables)


def _is_column(step: dis.Instruction) -> bool:
    return step.opname == "LOAD_CONST" and type(step.argval) is str


def _is_lookup(step: dis.Instruction) -> bool:
    return step.opname == "BINARY_SUBSCR" or (step.opname, step.argrepr) == ("BINARY_OP", "[]")
