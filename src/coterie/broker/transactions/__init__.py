"""Transactions: the coordinator on the event loop, and the writes for producers on the log's writer thread."""
