"""The control plane's edge: sockets and authentication around :mod:`fries.protocol`."""
