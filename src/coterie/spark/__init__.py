"""The data plane: sessions, tasks as queries, checkpoints, connectors, transforms."""
