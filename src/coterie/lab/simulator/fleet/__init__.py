"""The simulation of workers in a classic group (`workers`): the real members of the group, and its rounds.

settings        settings of each worker
cluster         the objects that all workers share (it does not hold the workers)
process         the state of one process of a worker that the invariant checks read
worker          one process of a worker: the real `herder` and `member` machines
process_faults  the faults of all workers, and changes of the group's protocol
checker         the checks of the named invariants; those of one round (rounds, fewest) and of the scheduled rebalance
                delay (deferral_checks)
settled_checks  the checks after the last fault
run             the simulation with one seed, from start to outcome
"""
