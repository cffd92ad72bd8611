"""Bad records: records that do not convert or transform. Separates the bad rows of a batch from the good rows, and
writes bad rows as dead letters."""
