"""The checkpoint of a query: where it is, and how to keep a log in it.

A checkpoint may be on any file system that Spark can write, so the log goes there through
Hadoop's own interfaces, from and to local files: large models never pass through Py4J. On
this machine's disk Python writes by itself, without that detour.
"""

from __future__ import annotations

import secrets
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.sql import SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from fries.errors import LogError
from fries.log.files import PARTIAL, Files, LocalFiles
from fries.log.pieces import Buffer, unhurried

LOCATION: Final = "checkpointLocation"
DEFAULT: Final = "spark.sql.streaming.checkpointLocation"


def checkpoint_of(writer: DataStreamWriter) -> str | None:
    """Where a query will keep its checkpoint; ``None`` if in a temporary folder.

    Spark tells nobody, so this looks into its writer.
    """
    options = _options(writer)
    chosen = options.get(LOCATION)
    if chosen.isDefined():
        return str(chosen.get())
    name, default = options.get("queryName"), writer._spark.conf.get(DEFAULT, None)
    return f"{default}/{name.get()}" if default and name.isDefined() else None


def _options(writer: DataStreamWriter) -> Any:  # noqa: ANN401
    field = writer._jwrite.getClass().getDeclaredField("extraOptions")
    field.setAccessible(True)
    return field.get(writer._jwrite)


def files_of(session: SparkSession, folder: str) -> Files:
    """A folder on whatever file system it is."""
    try:
        hadoop = HadoopFiles(session, folder)
        return LocalFiles(Path(hadoop.path)) if hadoop.scheme == "file" else hadoop
    except Py4JJavaError as error:
        raise LogError(f"{folder} is of no use: {error.java_exception}") from error


def last_commit(session: SparkSession, checkpoint: str) -> int:
    """The newest micro-batch that Spark has committed; -1 if none is."""
    names = files_of(session, f"{checkpoint}/commits").names()
    return max((int(name) for name in names if name.isdigit()), default=-1)


class HadoopFiles:
    """A folder on a file system that Hadoop knows: implements :class:`fries.log.files.Files`."""

    def __init__(self, session: SparkSession, folder: str) -> None:
        jvm: Any = session.sparkContext._jvm
        self._gateway: Any = session.sparkContext._gateway
        self._hadoop: Any = jvm.org.apache.hadoop.fs
        configuration = session._jsparkSession.sessionState().newHadoopConf()
        given = self._hadoop.Path(folder)
        self._system: Any = given.getFileSystem(configuration)
        self._folder: Any = self._system.makeQualified(given)
        uri = self._folder.toUri()
        self._context: Any = self._hadoop.FileContext.getFileContext(uri, configuration)
        self.scheme = str(uri.getScheme())
        self.path = str(uri.getPath())

    @property
    def place(self) -> str:
        """The folder."""
        return str(self._folder.toString())

    def names(self) -> list[str]:
        """The files that are there."""
        try:
            if not self._system.exists(self._folder):
                return []
            found = [one.getPath().getName() for one in self._system.listStatus(self._folder)]
        except Py4JJavaError as error:
            raise self._error(self._folder, "listed", error) from error
        return [str(name) for name in found if not name.endswith(PARTIAL)]

    def has(self, name: str) -> bool:
        """Whether a file is there."""
        try:
            return bool(self._system.exists(self._path(name)))
        except Py4JJavaError as error:
            raise self._error(self._path(name), "looked for", error) from error

    def read(self, name: str) -> Buffer:
        """All bytes of a file."""
        with tempfile.TemporaryDirectory() as here:
            local = Path(here, name)
            try:
                self._system.copyToLocalFile(False, self._path(name), self._local(local), True)
            except Py4JJavaError as error:
                raise self._error(self._path(name), "read", error) from error
            return local.read_bytes()

    def write(self, name: str, parts: Sequence[Buffer], replace: bool = False) -> None:
        """Write a file, whole or not at all."""
        target, partial = self._path(name), self._path(f"{name}.{secrets.token_hex(4)}{PARTIAL}")
        rename = getattr(self._hadoop, "Options$Rename")
        how = self._gateway.new_array(rename, 1)
        how[0] = rename.OVERWRITE if replace else rename.NONE
        with tempfile.TemporaryDirectory() as here:
            local = Path(here, name)
            try:
                with local.open("wb") as file:
                    for piece in unhurried(parts):
                        file.write(piece)
                self._system.copyFromLocalFile(False, True, self._local(local), partial)
                self._context.rename(partial, target, how)
            except Py4JJavaError as error:
                raise self._error(target, "written", error) from error
            except OSError as error:
                raise LogError(f"{local} cannot be written on its way: {error}") from error

    def remove(self, name: str) -> None:
        """Remove a file."""
        try:
            self._system.delete(self._path(name), False)
        except Py4JJavaError as error:
            raise self._error(self._path(name), "removed", error) from error

    def _path(self, name: str) -> Any:  # noqa: ANN401
        return self._hadoop.Path(self._folder, name)

    def _local(self, path: Path) -> Any:  # noqa: ANN401
        return self._hadoop.Path(path.as_uri())

    def _error(self, path: Any, what: str, error: Py4JJavaError) -> LogError:  # noqa: ANN401
        story = error.java_exception.toString()
        return LogError(f"{path.toString()} cannot be {what}: {story}")
