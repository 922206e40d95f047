"""What a change is, and the protocol that brings it to all workers: state machines without I/O."""
