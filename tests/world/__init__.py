"""The protocol in every situation that it can meet."""
