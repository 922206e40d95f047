"""Spark's life around the production protocol: all runs of small cases, some of large ones.

The machines of controller and worker and the epoch arithmetic are those that run on Spark. Around
them stands what they can meet: tasks, batches, processes, a log, and everything that can fail.
"""
