"""What may happen next in a world."""

from __future__ import annotations

from collections.abc import Iterator

from fries.change.model import Phase
from fries.protocol.worker import Activity
from fries_lab.world.process import Process
from fries_lab.world.scenario import Fault
from fries_lab.world.world import Action, World


def actions(world: World) -> list[Action]:
    """Everything that may happen next; what goes wrong comes last."""
    return [*_driver(world), *_workers(world), *_spark(world), *_faults(world)]


def _driver(world: World) -> Iterator[Action]:
    if world.asked < len(world.scenario.asks) and not world.over:
        yield ("ask",)
        if world.scenario.asks_at_once:
            return
    if world.log.queue:
        yield ("log", "writes")
    if world.held and (not world.helping or not world.is_undecided(world.helping)):
        yield ("take back",)
    if world.failed and not world.given_up and not world.log.queue and not world.undo_under_way:
        yield ("again",)
    active = world.controller.active.values()
    news = world.told_finished < world.finished or world.over
    if news and any(change.phase is Phase.COMMITTED for change in active):
        yield ("progress",)


def _workers(world: World) -> Iterator[Action]:
    for name, process in world.processes.items():
        if world.down.get(name):
            yield ("down", name)
        if not process.left and (process.said or name not in world.down):
            yield ("up", name)
        if process.loading is not None:
            yield ("load", name)
        if process.may_run:
            yield ("row", name)


def _spark(world: World) -> Iterator[Action]:
    if world.failed or world.over:
        return
    first = [work.state for place, work in world.tasks.items() if place.stage == 0]
    if all(work.state == "done" for work in world.tasks.values()):
        yield ("commit",)
        return
    ready = all(state == "done" for state in first)
    connected = sum(name in world.down for name in world.processes)
    if connected < world.scenario.workers:
        yield ("spawn",)
    for place, work in world.tasks.items():
        if work.state != "pending" or (place.stage and not ready):
            continue
        for name, process in world.processes.items():
            if _is_free(process):
                yield ("start", place, name)


def _is_free(process: Process) -> bool:
    machine = process.machine
    joined = machine.welcomed and machine.activity is Activity.IDLE and not machine.lost
    return joined and process.task is None and not process.dead


def _faults(world: World) -> Iterator[Action]:
    if world.over:
        return
    for fault, left in world.faults.items():
        if left:
            yield from _ways(world, fault)


def _ways(world: World, fault: Fault) -> Iterator[Action]:
    """How a fault may happen now."""
    match fault:
        case Fault.WORKER_DIES:
            yield from ((fault, name) for name in world.processes)
        case Fault.CONNECTION_BREAKS:
            yield from ((fault, name) for name in world.processes if name in world.down)
        case Fault.TASK_FAILS:
            running = (name for name, process in world.processes.items() if process.may_run)
            yield from ((fault, name) for name in running)
        case Fault.OUTPUT_LOST:
            works = [work for place, work in world.tasks.items() if place.stage]
            if not world.failed and all(work.state != "running" for work in works):
                for place, work in world.tasks.items():
                    if not place.stage and work.state == "done":
                        yield (fault, place)
        case Fault.DRIVER_DIES:
            yield (fault, 0)
            if world.log.queue:
                yield (fault, 1)
        case Fault.LOG_FAILS | Fault.LOG_AMBIGUOUS:
            if world.log.queue:
                yield (fault,)
        case Fault.LOAD_FAILS:
            loading = (n for n, process in world.processes.items() if process.loading)
            yield from ((fault, name) for name in loading)
        case Fault.TIME_IS_OVER:
            yield from ((fault, number) for number in sorted(world.timers))
