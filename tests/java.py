"""How Java is started in tests: most processes end before code is worth a better compilation."""

from __future__ import annotations

import os
from typing import Final

OPTIONS: Final = (
    "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
    " -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
)
"""Simple compilation only, and no second look at the code of Spark: half the time to start."""
EXECUTOR: Final = {"spark.executor.extraJavaOptions": OPTIONS}
"""A setting for executors, which do not look at the environment."""


def start_quickly() -> None:
    """For drivers, and for the daemons of a cluster; whoever has options of his own keeps them."""
    for name in ("SPARK_SUBMIT_OPTS", "SPARK_DAEMON_JAVA_OPTS"):
        os.environ.setdefault(name, OPTIONS)
