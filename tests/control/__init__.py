"""Tests of the control plane over loopback sockets."""
