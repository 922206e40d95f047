"""Simulation of the pipelined engine that the paper assumes.

:mod:`fries_lab.sim.explore` runs small dataflows through every interleaving;
:mod:`fries_lab.sim.engine` runs large ones through simulated time. Both drive the state
machines of :mod:`fries.protocol`, so what they put on trial is the real protocol.
"""
