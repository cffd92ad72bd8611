"""The coordinator's side of the group protocols and of transactions, as pure machines: no I/O, no clock, no
randomness."""
