"""Spark's own words about a failure, in a file instead of on the console.

A failing task makes Spark log the same stack trace in five places, hundreds of lines in all. Of a
supervised query that is no news: the supervisor says in a few lines what failed and what it does.
So while such a query runs, what Spark logs about its failures goes to a file: errors of its
threads and tasks, and what the scheduler says about its tasks. Everything else stays where the
user's configuration of Log4j puts it, and so does everything that goes to other appenders than
the console. On a cluster, tasks log where their executors do.

A first batch can fail before Spark has told which query it has started. So from before the start
until then, whatever is about a query that did not run yet is taken for the one that is starting.
"""

from __future__ import annotations

import logging
import os
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from pyspark import SparkContext
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from fries.spark.store import NAME as STATES

MARK: Final = "mdc.fries"
"""Local property that Spark puts into the logging context of every task of a query."""
QUERY: Final = ("QUERY_ID", "query_id")
"""What Spark's thread of a query has in its logging context, as its versions call it."""
SHORT_ID: Final = 5
"""Characters of a query's id that the scheduler begins its messages with."""
SCHEDULER: Final = (
    r"(?s)(\[queryId = {query}\][^\n]*(Lost task|failed \d+ times; aborting job)"
    r"|Failed to cancel job group {run}).*"
)
"""What the scheduler says about tasks that fail, and about a query that has no job to cancel."""
NEW_KEY: Final = rf"(?s)Map state {STATES} doesn't contain key .*"
"""What the state store warns of when a keyed operator meets a key for the first time: no news."""
LONGEST_NAME: Final = 64
"""Characters of a flow's name that are part of a file's."""
SIZE: Final = "20 MB"
"""Of the file, and of the older one that is kept beside it."""
PATTERN: Final = "%d{yy/MM/dd HH:mm:ss} %p %c{1}: %m%n%ex"
CALLBACKS: Final = logging.getLogger("py4j.clientserver")
"""What calls the function of a foreachBatch sink."""
FAILED_CALLBACK: Final = "There was an exception while executing the Python Proxy"
"""What it says, with a traceback, if the function raises."""
LAYOUT: Final = logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s")
LOG4J: Final = "org.apache.logging.log4j"
PAIR: Final = "core.util.KeyValuePair"
_logger = logging.getLogger(__name__)


class QuietSpark:
    """Keeps what Spark logs about the failures of one flow's query off the console."""

    def __init__(self, session: SparkSession, flow: str) -> None:
        self._session, self._context = session, session.sparkContext
        name = re.sub(r"[^A-Za-z0-9_-]", "_", flow)[:LONGEST_NAME]
        handle, self.file = tempfile.mkstemp(".log", f"fries-{name}-")
        os.close(handle)
        self._mark = Path(self.file).stem
        self._undo: list[Callable[[], object]] = []
        """What takes back what was done to Log4j, newest last."""
        self._files = 0
        """Appenders so far: Log4j tells them by their names."""

    @contextmanager
    def starting(self) -> Iterator[None]:
        """Have what is started here known by its mark, and be quiet about it from the first."""
        self._point(self._whatever_starts)
        CALLBACKS.addFilter(self._stays)
        before = self._context.getLocalProperty(MARK)
        self._context.setLocalProperty(MARK, self._mark)
        try:
            yield
        except BaseException:
            self._restore(self._undo)
            raise
        finally:
            self._context.setLocalProperty(MARK, before)  # type: ignore[arg-type]

    def follow(self, query: StreamingQuery) -> None:
        """From now on this is the query."""
        self._point(lambda: _Whose({str(query.id): str(query.runId)}))

    def _stays(self, record: logging.LogRecord) -> bool:
        """Whether what Py4J logs is no failure of this query's sink: else it goes to the file.

        The call comes from the query's thread, and a question on the way goes back to that one.
        """
        if not record.getMessage().startswith(FAILED_CALLBACK):
            return True
        try:
            if self._context.getLocalProperty(MARK) != self._mark:
                return True
            with Path(self.file).open("a") as file:
                file.write(f"{LAYOUT.format(record)}\n")
        except Exception:  # Spark is gone, or there is no room: then it is said where it always is
            return True
        return False

    def _whatever_starts(self) -> _Whose:
        """What no query is that runs now, in any session."""
        running = self._session._jsparkSession.sharedState().activeStreamingQueries()
        found = [running[run] for run in running]
        return _Whose({str(one.id()): str(one.runId()) for one in found}, others=True)

    def _point(self, find: Callable[[], _Whose]) -> None:
        """Be quiet about these queries, and no more about those before; without a gap."""
        before, self._undo = self._undo, []
        try:
            self._divert(find())
        except Exception as error:  # another Log4j, or none: Spark stays as loud as it was
            _logger.debug("Spark's log stays as it is: %r", error)
            self._restore(self._undo)
        self._restore(before)

    def told(self) -> str:
        """Where Spark's messages are, if it has said something."""
        try:
            said = Path(self.file).stat().st_size > 0
        except OSError:  # somebody has removed it
            said = False
        return f"Spark's own messages: {self.file}" if said else ""

    def close(self) -> None:
        """The query is over: leave all logs as they were, and no file that nobody needs."""
        CALLBACKS.removeFilter(self._stays)
        self._restore(self._undo)
        if not self.told():
            Path(self.file).unlink(missing_ok=True)

    def _restore(self, undo: list[Callable[[], object]]) -> None:
        while undo:
            with suppress(Exception):  # Spark may be gone, or somebody has configured Log4j anew
                undo.pop()()

    def _divert(self, whose: _Whose) -> None:
        log4j = _Log4j(self._context)
        configuration = log4j.configuration()
        chosen = log4j.only(log4j.filters(whose, self._mark, "ACCEPT"))
        self._files += 1
        name = f"{self._mark}-{self._files}"
        appender = log4j.file(self.file, name, chosen, configuration)
        appender.start()
        self._undo.append(appender.stop)
        for config in configuration.getLoggers().values():
            if any(map(log4j.is_console, config.getAppenders().values())):
                config.addAppender(appender, None, None)
                self._undo.append(partial(config.removeAppender, name))
        for console in filter(log4j.is_console, configuration.getAppenders().values()):
            for one in (log4j.new_keys(), *log4j.filters(whose, self._mark, "DENY")):
                console.addFilter(one)
                self._undo.append(partial(console.removeFilter, one))


class _Whose(NamedTuple):
    """Queries: some, by their ids with the ids of their runs, or all ``others``."""

    runs: Mapping[str, str]
    others: bool = False

    def scheduler(self) -> str:
        """A pattern of what the scheduler says about their failures."""
        ids = "|".join(one[:SHORT_ID] for one in self.runs)
        runs = "|".join(self.runs.values())
        if self.others:
            ids, runs = (rf"(?!({one})\b)[\w-]+" if one else r"[\w-]+" for one in (ids, runs))
        return SCHEDULER.format(query=ids, run=runs)

    def levels(self) -> tuple[dict[str, str], str]:
        """From which level on their messages are meant, by id; and of ids that are not named."""
        named, unnamed = ("OFF", "ERROR") if self.others else ("ERROR", "OFF")
        return dict.fromkeys(self.runs, named), unnamed


class _Log4j:
    """The parts of Log4j that are used, through Py4J."""

    def __init__(self, context: SparkContext) -> None:
        assert context._jvm is not None
        assert context._gateway is not None
        self._jvm, self._gateway = context._jvm, context._gateway

    def configuration(self) -> Any:  # noqa: ANN401
        """What is in force."""
        return self._class("LogManager").getContext(False).getConfiguration()

    def is_console(self, appender: Any) -> bool:  # noqa: ANN401
        """Whether an appender writes to stdout or stderr."""
        return str(appender.getClass().getSimpleName()) == "ConsoleAppender"

    def filters(self, whose: _Whose, mark: str, then: str) -> list[Any]:
        """Filters that give a result for what is about failures of queries, and else none."""
        ours, neutral = self._result(then), self._result("NEUTRAL")
        found = [self._said(whose.scheduler(), then)]
        level, dynamic = self._class("Level"), self._class("core.filter.DynamicThresholdFilter")
        marked = {mark: "ERROR"}, "OFF"
        for key, (named, unnamed) in {MARK: marked, **dict.fromkeys(QUERY, whose.levels())}.items():
            pairs = self._array(PAIR, [self._class(PAIR)(*pair) for pair in named.items()])
            other = level.toLevel(unnamed)
            found.append(dynamic.createFilter(key, pairs, other, ours, neutral))
        return found

    def new_keys(self) -> Any:  # noqa: ANN401
        """A filter without what is said of keys that are new."""
        return self._said(NEW_KEY, "DENY")

    def _said(self, pattern: str, then: str) -> Any:  # noqa: ANN401
        """A filter that gives a result for messages of a pattern, and else none."""
        regex = self._class("core.filter.RegexFilter")
        return regex.createFilter(pattern, None, False, self._result(then), self._result("NEUTRAL"))

    def only(self, chosen: list[Any]) -> Any:  # noqa: ANN401
        """A filter that keeps what none of some filters accepts."""
        denied = self._result("DENY")
        rest = self._class("core.filter.ThresholdFilter")
        rest = rest.createFilter(self._class("Level").OFF, denied, denied)
        array = self._array("core.Filter", [*chosen, rest])
        return self._class("core.filter.CompositeFilter").createFilters(array)

    def _result(self, name: str) -> Any:  # noqa: ANN401
        return getattr(self._class("core.Filter$Result"), name)

    def file(self, path: str, name: str, chosen: Any, configuration: Any) -> Any:  # noqa: ANN401
        """A file that is appended to, and begun anew when it is long."""
        rolling = "core.appender.rolling"
        layout = self._class("core.layout.PatternLayout").newBuilder().withPattern(PATTERN).build()
        policy = self._class(f"{rolling}.SizeBasedTriggeringPolicy").createPolicy(SIZE)
        strategy = self._class(f"{rolling}.DefaultRolloverStrategy").newBuilder()
        builder = self._class("core.appender.RollingFileAppender").newBuilder()
        builder.setName(name)
        builder.setConfiguration(configuration)
        builder.setLayout(layout)
        builder.setFilter(chosen)
        builder.withFileName(path)
        builder.withFilePattern(f"{path}.%i")
        builder.withPolicy(policy)
        builder.withStrategy(strategy.withMax("1").withConfig(configuration).build())
        return builder.build()

    def _array(self, kind: str, parts: list[Any]) -> Any:  # noqa: ANN401
        array = self._gateway.new_array(self._class(kind), len(parts))
        for number, part in enumerate(parts):
            array[number] = part
        return array

    def _class(self, name: str) -> Any:  # noqa: ANN401
        return getattr(self._jvm, f"{LOG4J}.{name}")
