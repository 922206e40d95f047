"""Spark's own words about a failure, in a file instead of on the console.

A failing task makes Spark log the same stack trace in five places, hundreds of lines in all. Of a
supervised query that is no news: the supervisor says in a few lines what failed and what it does.
So while such a query runs, what Spark logs about its failures goes to a file: errors of its
threads and tasks, and what the scheduler says about its tasks. Everything else stays where the
user's configuration of Log4j puts it, and so does everything that goes to other appenders than
the console. On a cluster, tasks log where their executors do.
"""

from __future__ import annotations

import logging
import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

from pyspark import SparkContext
from pyspark.sql.streaming.query import StreamingQuery

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
LONGEST_NAME: Final = 64
"""Characters of a flow's name that are part of a file's."""
SIZE: Final = "20 MB"
"""Of the file, and of the older one that is kept beside it."""
PATTERN: Final = "%d{yy/MM/dd HH:mm:ss} %p %c{1}: %m%n%ex"
LOG4J: Final = "org.apache.logging.log4j"
PAIR: Final = "core.util.KeyValuePair"
_logger = logging.getLogger(__name__)


class QuietSpark:
    """Keeps what Spark logs about the failures of one flow's query off the console."""

    def __init__(self, context: SparkContext, flow: str) -> None:
        self._context = context
        name = re.sub(r"[^A-Za-z0-9_-]", "_", flow)[:LONGEST_NAME]
        handle, self.file = tempfile.mkstemp(".log", f"fries-{name}-")
        os.close(handle)
        self._mark = Path(self.file).stem
        self._undo: list[Any] = []
        """What takes back what was done to Log4j, newest last."""

    @contextmanager
    def starting(self) -> Iterator[None]:
        """Have what is started here known by its mark."""
        before = self._context.getLocalProperty(MARK)
        self._context.setLocalProperty(MARK, self._mark)
        try:
            yield
        finally:
            self._context.setLocalProperty(MARK, before)  # type: ignore[arg-type]

    def follow(self, query: StreamingQuery) -> bool:
        """From now on this is the query; ``False`` if Spark stays as loud as it was."""
        self._restore()
        try:
            self._divert(query)
        except Exception as error:  # another Log4j, or none
            _logger.debug("Spark's log stays as it is: %r", error)
            self._restore()
            return False
        return True

    def told(self) -> str:
        """Where Spark's messages are, if it has said something."""
        try:
            said = Path(self.file).stat().st_size > 0
        except OSError:  # somebody has removed it
            said = False
        return f"Spark's own messages: {self.file}" if said else ""

    def close(self) -> None:
        """The query is over: leave Log4j as it was, and no file that nobody needs."""
        self._restore()
        if not self.told():
            Path(self.file).unlink(missing_ok=True)

    def _restore(self) -> None:
        while self._undo:
            with suppress(Exception):  # Spark may be gone, or somebody has configured Log4j anew
                self._undo.pop()()

    def _divert(self, query: StreamingQuery) -> None:
        log4j = _Log4j(self._context)
        configuration = log4j.configuration()
        chosen = log4j.only(log4j.filters(query, self._mark, "ACCEPT"))
        appender = log4j.file(self.file, self._mark, chosen, configuration)
        appender.start()
        self._undo.append(appender.stop)
        for config in configuration.getLoggers().values():
            if any(map(log4j.is_console, config.getAppenders().values())):
                config.addAppender(appender, None, None)
                self._undo.append(partial(config.removeAppender, appender.getName()))
        for console in filter(log4j.is_console, configuration.getAppenders().values()):
            for one in log4j.filters(query, self._mark, "DENY"):
                console.addFilter(one)
                self._undo.append(partial(console.removeFilter, one))


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

    def filters(self, query: StreamingQuery, mark: str, then: str) -> list[Any]:
        """Filters that give a result for what is about failures of a query, and else none."""
        ours, neutral = self._result(then), self._result("NEUTRAL")
        scheduler = SCHEDULER.format(query=str(query.id)[:SHORT_ID], run=query.runId)
        regex = self._class("core.filter.RegexFilter")
        found = [regex.createFilter(scheduler, None, False, ours, neutral)]
        level = self._class("Level")
        named = {MARK: mark, **dict.fromkeys(QUERY, str(query.id))}
        for key, value in named.items():  # of what has it: errors
            pairs = self._array(PAIR, [self._class(PAIR)(value, "ERROR")])
            dynamic = self._class("core.filter.DynamicThresholdFilter")
            found.append(dynamic.createFilter(key, pairs, level.OFF, ours, neutral))
        return found

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
