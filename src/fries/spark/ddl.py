"""Columns as text, such as ``"id long, tags array<string>"``, understood without Java.

PySpark has its text parsed by Spark, which needs a session. A test builds a flow without one: then
the usual types are understood here.
"""

from __future__ import annotations

import re
from typing import Final

from pyspark.sql import types as T  # noqa: N812 - as everyone names it

SIMPLE: Final[dict[str, type[T.DataType]]] = {
    "bigint": T.LongType,
    "binary": T.BinaryType,
    "boolean": T.BooleanType,
    "byte": T.ByteType,
    "date": T.DateType,
    "double": T.DoubleType,
    "float": T.FloatType,
    "int": T.IntegerType,
    "integer": T.IntegerType,
    "long": T.LongType,
    "real": T.FloatType,
    "short": T.ShortType,
    "smallint": T.ShortType,
    "string": T.StringType,
    "timestamp": T.TimestampType,
    "timestamp_ntz": T.TimestampNTZType,
    "tinyint": T.ByteType,
}
MOST_DIGITS: Final = 38
"""Of Spark's decimals."""
TOKEN: Final = re.compile(r"\s*(`(?:[^`]|``)+`|\w+|[<>(),:])")


def parsed(text: str) -> T.StructType | None:
    """The columns that a text names; ``None`` if only Spark can tell."""
    try:
        return _Parser(text).columns()
    except (LookupError, ValueError):
        return None


class _Parser:
    """Reads from the left to the right; raises where it does not understand."""

    def __init__(self, text: str) -> None:
        self._tokens: list[str] = []
        place, text = 0, text.strip()
        while place < len(text):
            found = TOKEN.match(text, place)
            if found is None:
                raise ValueError(text)
            self._tokens.append(found[1])
            place = found.end()
        self._tokens.reverse()

    def columns(self) -> T.StructType:
        """All that there is."""
        fields = [self._field()]
        while self._tokens:
            self._expect(",")
            fields.append(self._field())
        return T.StructType(fields)

    def _field(self) -> T.StructField:
        name = self._tokens.pop()
        if name.startswith("`"):
            name = name[1:-1].replace("``", "`")
        elif not (name.isidentifier() and name.isascii()):
            raise ValueError(name)
        if self._tokens[-1] == ":":
            self._tokens.pop()
        return T.StructField(name, self._type())

    def _type(self) -> T.DataType:
        name = self._tokens.pop().lower()
        if name in SIMPLE:
            return SIMPLE[name]()
        if name == "decimal":
            return self._decimal()
        return self._nested(name)

    def _decimal(self) -> T.DataType:
        if not self._tokens or self._tokens[-1] != "(":
            return T.DecimalType()
        self._tokens.pop()
        numbers = [int(self._tokens.pop())]
        if self._tokens[-1] == ",":
            self._tokens.pop()
            numbers.append(int(self._tokens.pop()))
        self._expect(")")
        precision, scale = (*numbers, 0)[:2]
        if not 0 <= scale <= precision <= MOST_DIGITS:
            raise ValueError(numbers)
        return T.DecimalType(precision, scale)

    def _nested(self, name: str) -> T.DataType:
        self._expect("<")
        made: T.DataType
        if name == "array":
            made = T.ArrayType(self._type())
        elif name == "map":
            key = self._type()
            self._expect(",")
            made = T.MapType(key, self._type())
        elif name == "struct":
            fields = [self._field()]
            while self._tokens[-1] == ",":
                self._tokens.pop()
                fields.append(self._field())
            made = T.StructType(fields)
        else:
            raise ValueError(name)
        self._expect(">")
        return made

    def _expect(self, token: str) -> None:
        if self._tokens.pop() != token:
            raise ValueError(token)
