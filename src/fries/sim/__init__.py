"""Simulation of the pipelined engine that the paper assumes.

:mod:`fries.sim.explore` runs small dataflows through every interleaving;
:mod:`fries.sim.engine` runs large ones through simulated time. Both drive the state
machines of :mod:`fries.protocol`, so what they put on trial is the real protocol.
"""
