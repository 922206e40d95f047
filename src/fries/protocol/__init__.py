"""The worker's half of the reconfiguration protocol, and its messages; without I/O.

The worker's machine is an immutable state and one function: ``(state, event) -> (state,
instructions)``. Whoever drives it (sockets, the simulator, the explorer of all interleavings) feeds
events and carries instructions out; all decisions are here, and in :mod:`fries.change`.
"""
