"""The coordinator of connect groups: the epoch-based rebalance protocol for connectors and tasks (the KIP-848 draft for
Connect)."""
