"""Kill processes of a running, changing job, and see that nothing is lost and nothing mixed.

``scenario`` says what is to happen, ``workload`` is the flow that it happens to, ``driver`` runs
it as a process of its own, ``killer`` starts, kills and restarts, ``oracle`` judges the output,
``report`` makes the table.
"""
