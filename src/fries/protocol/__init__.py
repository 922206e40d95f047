"""The reconfiguration protocol: messages, and state machines without I/O.

A machine is an immutable state and one function: ``(state, event) -> (state,
instructions)``. Whoever drives it (sockets, the simulator, the explorer of all
interleavings) feeds events and carries instructions out; all decisions are here.
"""
