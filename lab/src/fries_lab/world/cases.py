"""The scenarios that are explored: small ones whole, large ones at random."""

from __future__ import annotations

from typing import Final

from fries_lab.world.scenario import (
    Fault,
    Scenario,
    alone,
    epoch,
    fries,
    mini_batch,
)

BOTH: Final = fries("A", "B", migrates=True)
WHOLE: Final = {
    "a change and one worker": Scenario((BOTH,), batches=2, workers=1, partitions=1, rows=2),
    "a change and two workers": Scenario(
        (BOTH,), batches=1, workers=2, partitions=1, loads_at_once=True
    ),
    "two changes": Scenario((BOTH, fries("B")), batches=1, workers=1, partitions=1),
    "two changes of different operators": Scenario(
        (alone(), fries("A")), batches=1, workers=1, partitions=1, copies=False
    ),
    "between two batches": Scenario((mini_batch("A", "B"),), batches=2, workers=1, partitions=1),
    "by epochs": Scenario((epoch("B", migrates=True),), batches=2, workers=1, partitions=1),
    "without a log": Scenario((BOTH,), batches=2, workers=1, partitions=2, durable=False),
    "a version that fails": Scenario(
        (alone(bad_from=0),), batches=1, workers=1, partitions=1, copies=False, supervised=True
    ),
    **{
        f"{fault}": Scenario(
            (BOTH,),
            ((fault, 1),),
            batches=1,
            workers=1,
            partitions=1,
            asks_at_once=fault in (Fault.WORKER_DIES, Fault.CONNECTION_BREAKS, Fault.DRIVER_DIES),
            loads_at_once=fault is not Fault.LOAD_FAILS,
        )
        for fault in Fault
    },
}
"""Few enough interleavings for all of them."""

_EVERYTHING: Final = tuple((fault, 1) for fault in Fault)
LARGE: Final = {
    "components of both operators": Scenario(
        (BOTH, fries("B", migrates=True), epoch("A"), mini_batch("A", "B")),
        _EVERYTHING,
        batches=4,
        workers=3,
        tasks=2,
        rows=2,
    ),
    "components of one operator": Scenario(
        (alone(migrates=True), fries("A"), alone(migrates=True), epoch("B")),
        _EVERYTHING,
        batches=4,
        workers=3,
        tasks=2,
        rows=2,
        copies=False,
    ),
    "versions that fail": Scenario(
        (fries("A", "B", bad_from=0), BOTH, fries("A")),
        _EVERYTHING,
        batches=4,
        tasks=2,
        rows=2,
        supervised=True,
    ),
    "versions that fail where they are entered": Scenario(
        (alone(bad_from=0), BOTH, alone(bad_from=0), alone(migrates=True)),
        _EVERYTHING,
        batches=4,
        tasks=2,
        rows=2,
        copies=False,
        supervised=True,
    ),
    "versions that fail when their first batch is committed": Scenario(
        (fries("A", "B", bad_from=2), fries("A", "B", migrates=True, bad_from=3)),
        ((Fault.DRIVER_DIES, 2), (Fault.WORKER_DIES, 2)),
        batches=4,
        supervised=True,
    ),
    "a log that fails": Scenario(
        (BOTH, fries("A", "B"), BOTH),
        ((Fault.LOG_AMBIGUOUS, 3), (Fault.LOG_FAILS, 2), (Fault.DRIVER_DIES, 3)),
        batches=3,
        partitions=1,
        fault_rate=0.2,
    ),
    "workers that come while a change is committed": Scenario(
        (BOTH, fries("A", "B")),
        ((Fault.WORKER_DIES, 4), (Fault.LOAD_FAILS, 3), (Fault.DRIVER_DIES, 3)),
        batches=3,
        partitions=1,
        fault_rate=0.2,
        slow_log=True,
    ),
    "workers that come late": Scenario(
        (BOTH, fries("A", "B"), fries("B")),
        ((Fault.WORKER_DIES, 6), (Fault.LOAD_FAILS, 2), (Fault.CONNECTION_BREAKS, 2)),
        batches=4,
        workers=3,
    ),
    "many changes, one after the other": Scenario(
        (BOTH, fries("B", migrates=True), BOTH, BOTH, fries("A"), fries("A", "B")),
        ((Fault.WORKER_DIES, 8), (Fault.DRIVER_DIES, 1)),
        batches=10,
        tasks=1,
        rows=1,
    ),
    "outputs that are lost": Scenario(
        (BOTH, fries("A", "B"), BOTH, fries("A", "B")),
        ((Fault.OUTPUT_LOST, 8),),
        batches=4,
        rows=2,
        partitions=4,
        workers=1,
        fault_rate=0.3,
    ),
    "without a log": Scenario(
        (BOTH, fries("B"), mini_batch("A", "B")),
        tuple(
            (fault, 1) for fault in (Fault.WORKER_DIES, Fault.CONNECTION_BREAKS, Fault.LOAD_FAILS)
        ),
        batches=4,
        workers=3,
        tasks=2,
        rows=2,
        durable=False,
    ),
}
"""For random walks."""
