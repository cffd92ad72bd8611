"""Bad records: which rows of a batch are bad, where they go, and how they and the good rows are fixed by one step."""
