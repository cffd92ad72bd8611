"""Transactions: the coordinator on the event loop, and what the log's thread writes for producers."""
