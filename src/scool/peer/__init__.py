"""Clients on machines of their own, without a server; see docs/peers.md."""
