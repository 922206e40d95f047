"""Test a flow and its updates without a cluster and without sleeps.

::

    payments = testing.stream("id long, customer long, amount double")
    alarms = build(fries.Flow("fraud"), payments)      # as your job builds it
    trial = testing.Trial(alarms)
    trial.change({"FC": better, "F": rule}, at_row=100)
    rows = trial.batch(payments=[...])["output"]       # the change comes in the middle
    trial.assert_all_old_or_all_new()

Rows go through the code that runs in Spark's Python workers; Spark itself is played: its exchanges,
its key groups, its state store and its tasks, one after the other in this process.
"""

from fries.sources import TestStream
from fries.testing.migrations import migrated
from fries.testing.sources import stream
from fries.testing.trial import Trial

__all__ = ["TestStream", "Trial", "migrated", "stream"]
