"""`coterie demo`: real data through three workers, one of which is killed in the middle of a batch."""
