"""Groups as the broker runs them: a host for each group's machine, its records in the log, its configs."""
