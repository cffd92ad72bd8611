"""Pure functions from (jobs, members, what each owns) to an assignment."""
