"""What is left of a log, for people; and how it is repaired, without Spark."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from fries.errors import LogError
from fries.log.copies import Whole
from fries.log.files import Files
from fries.log.log import missing_copies, missing_segments
from fries.log.owners import may_live
from fries.log.reading import Logged, Reading
from fries.log.records import Ended, Intent, encode
from fries.log.segments import late_end

BY_HAND: Final = "taken back by hand: its functions were lost"


@dataclass(frozen=True)
class Findings:
    """What a log is good for."""

    changes: tuple[str, ...]
    """A line for each, oldest first."""
    known: tuple[str, ...]
    """What is damaged or missing, and known from the copy."""
    lost: tuple[str, ...]
    """Why a start would be refused."""
    ways: tuple[str, ...]
    """What can be done about it."""
    uncopied: int
    """Records whose copy is missing or damaged."""

    @property
    def sound(self) -> bool:
        """Whether nothing is damaged or missing."""
        return not (self.known or self.lost or self.uncopied)


def examine(read: Reading) -> Findings:
    """What a log says, and what is wrong with it. Writes nothing."""
    if read.founded is None and not read.changes:
        raise LogError(f"there is no log of changes in {read.place}")
    gone = dict(read.without_functions())
    functions = [f"{one.lost}: the functions of {name!r} are lost" for name, one in gone.items()]
    return Findings(
        tuple(_line(logged) for logged in read.changes if logged.number or logged.intent),
        tuple(f"{one.why}; it is known from the copy" for one in read.restored),
        (*read.problems(), *functions),
        tuple(_ways(read, gone)),
        sum(map(len, _missing(read))),
    )


def repair(files: Files, copies: Files, take_back: int | None, force: bool) -> list[str]:
    """Write again what is known from the copy or lacks one; gives what was done."""
    read = Reading(files, copies)
    owner = read.owners.get(read.last_owner)
    if owner is not None and not owner.left and may_live(owner) and not force:
        raise LogError(
            f"a driver may still run on it (process {owner.process.partition(' ')[0]} on "
            f"{owner.host}); stop it, or use --force if you know that it has ended"
        )
    done = []
    for name, record, why, payload in read.restored:
        if not isinstance(record, Intent):
            files.write(name, encode(record, payload), replace=True)
            done.append(f"wrote {name} again: {why}")
    for missing in _missing(read):
        for name, (record, payload) in missing.items():
            copies.write(name, encode(record, payload), replace=True)
            done.append(f"copied {name}")
    if take_back is not None:
        done.append(_take_back(files, copies, read, take_back))
    return done


def _missing(read: Reading) -> list[dict[str, Whole]]:
    """The records whose copy is missing or damaged."""
    broken = read.broken_copies()
    missing: list[dict[str, Whole]] = [
        {name: (record, ()) for name, record in one.items()} for one in missing_copies(read, broken)
    ]
    return [*missing, missing_segments(read, broken)]


def _take_back(files: Files, copies: Files, read: Reading, number: int) -> str:
    """Let a change whose functions are lost never have happened."""
    found = {logged.number: logged for logged in read.changes if logged.happened}
    logged = found.get(number)
    if logged is None or logged.intent is None:
        raise LogError(f"there is no change {number} in force in {read.place}")
    if not logged.lost:
        raise LogError(f"change {number} is whole: undo it while the query runs")
    if logged.intent.migrates:
        raise LogError(
            f"change {number} has migrated states, which the version before it cannot read; put "
            "its functions into the code and start it with replace_functions=True"
        )
    ended = Ended(number, time.time(), "rolled back", BY_HAND, owner=read.last_owner)
    name = late_end(number, read.last_owner) if logged.covered else f"{number:08}.end"
    for folder in (files, copies):
        folder.write(name, encode(ended), replace=True)
    return f"took change {number} back"


def _line(logged: Logged) -> str:
    intent = logged.intent
    if intent is None:
        return f"{logged.number:>5}  {'unknown':<12}"
    versions = ", ".join(f"{name} v{version}" for name, version in intent.versions.items())
    note = f" ({intent.note})" if intent.note else ""
    return f"{logged.number:>5}  {_state(logged):<12} {versions}{note}"


def _state(logged: Logged) -> str:
    if logged.end is not None and (logged.happened or logged.ended_as("aborted", "rolled back")):
        return logged.end.phase
    if logged.commit_lost:
        return "damaged"
    return "committed" if logged.commit is not None else "aborted"


def _ways(read: Reading, gone: dict[str, Logged]) -> Iterator[str]:
    if read.restored:
        yield "`fries log repair` writes what is known from the copy; so does the next start"
    if any(_missing(read)):
        yield "`fries log repair` writes the copies that are missing"
    if read.problems():
        yield "restore the named files, or the whole checkpoint, from a backup"
        yield "or start on a new checkpoint: states and offsets begin anew"
    if gone:
        yield "restore the named files from a backup"
        names, numbers = ", ".join(gone), sorted({one.number for one in gone.values()})
        yield (
            f"or put the functions of {names} into the code, and start it once with "
            "flow.start(writer, replace_functions=True)"
        )
        for number in numbers:
            if not any(_migrates(one) for one in gone.values() if one.number == number):
                yield (
                    f"or `fries log repair --take-back {number}`: its operators go back to the "
                    "versions before it"
                )


def _migrates(logged: Logged) -> bool:
    return logged.intent is not None and logged.intent.migrates
