"""Groups in the broker: for each group a host that runs its machine; the log of the groups' records; and the groups'
configs."""
