"""The simulation of workers in a connect group (`workers`): the real members, the real coordinator with its log, and
the real assignor.

settings         settings of each worker
group_state      the group after a replay of its records, compared with responses and with the live group
coordinator      the real `groups` machine, with an outbox, timers and a disk that may lose unacknowledged writes
connections      the connections to the coordinator, whose ends one side may not see
assignor         the assignor, which fails at times
cluster          the objects that all workers share (it does not hold the workers)
process          the state of one process of a worker that the invariant checks read
worker           one process of a worker: the real `herder` and `member` machines
process_faults   the faults
checker          the checks of the named invariants: of workers; of the coordinator's steps (step_checks) and of its
                 responses (response_checks)
settled_checks   the checks after the last fault
run              the simulation with one seed, from start to outcome
"""
