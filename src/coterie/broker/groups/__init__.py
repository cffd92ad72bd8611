"""Groups in the broker: a host for each group's machine, the log of group records, and the groups' configs."""
