"""Where the log lives: a folder of small files, each written whole or not at all."""

from __future__ import annotations

import os
import secrets
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, Protocol

from fries.errors import LogError
from fries.log.pieces import Buffer, unhurried

FOLDER: Final = "fries"
"""Where in a checkpoint the log is."""
COPIES: Final = "fries-copies"
"""Where in a checkpoint the second copy of its records is."""
PARTIAL: Final = ".partial"
"""End of the names of files that are being written; a crash may leave one."""


class Files(Protocol):
    """A folder on some file system."""

    @property
    def place(self) -> str:
        """The folder, for messages."""

    def names(self) -> list[str]:
        """The files that are there, whole ones and those of others."""

    def has(self, name: str) -> bool:
        """Whether a file is there."""

    def read(self, name: str) -> Buffer:
        """All bytes of a file."""

    def write(self, name: str, parts: Sequence[Buffer], replace: bool = False) -> None:
        """Write a file so that it is there whole or not at all, even if the machine dies.

        Raises :class:`~fries.errors.LogError` if that fails, or if the file is there already
        and is not to be replaced.
        """

    def remove(self, name: str) -> None:
        """Remove a file; it may be gone already, and after a crash it may be back."""


class LocalFiles:
    """A folder on a disk of this machine: flushed, then given its name."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @property
    def place(self) -> str:
        """The folder."""
        return str(self._folder)

    def names(self) -> list[str]:
        """The files that are there."""
        try:
            return [path.name for path in self._folder.iterdir() if path.suffix != PARTIAL]
        except FileNotFoundError:
            return []

    def has(self, name: str) -> bool:
        """Whether a file is there."""
        return (self._folder / name).exists()

    def read(self, name: str) -> Buffer:
        """All bytes of a file."""
        try:
            return (self._folder / name).read_bytes()
        except OSError as error:
            raise LogError(f"{self.place}/{name} cannot be read: {error}") from error

    def write(self, name: str, parts: Sequence[Buffer], replace: bool = False) -> None:
        """Write a file, whole or not at all."""
        path = self._folder / name
        partial = path.with_name(f"{name}.{secrets.token_hex(8)}{PARTIAL}")  # nobody else's
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            with partial.open("wb") as file:
                for piece in unhurried(parts):
                    file.write(piece)
                file.flush()
                os.fsync(file.fileno())
            if replace:
                partial.replace(path)
            else:
                os.link(partial, path)  # unlike a rename, it never replaces a file
            self._flush_folder()
        except FileExistsError as error:
            raise LogError(
                f"{path} is there already: another driver runs on this checkpoint; stop one"
            ) from error
        except OSError as error:
            raise LogError(f"{path} cannot be written: {error}") from error
        finally:
            with suppress(OSError):
                partial.unlink(missing_ok=True)

    def remove(self, name: str) -> None:
        """Remove a file."""
        try:
            (self._folder / name).unlink(missing_ok=True)
        except OSError as error:
            raise LogError(f"{self.place}/{name} cannot be removed: {error}") from error

    def _flush_folder(self) -> None:
        folder = os.open(self._folder, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
