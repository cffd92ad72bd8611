"""The simulation of workers: the real members and herders of a fleet, their group, users and operators.

settings        settings of all workers, and of each worker
config_log      the config topic that all workers read
cluster         the objects that all workers share
process         the state of one process of a worker that the invariant checks read
worker          one process of a worker: the real `herder` and `member` machines, tasks that take time and die
                (runtime), its client of the config log (config_client), its REST endpoints and its client of the
                leader (rest)
process_faults  the faults; the requests of users and operators (users, operators)
checker         the checks of the named invariants; those of one round (rounds, fewest) and of the scheduled rebalance
                delay (deferral_checks)
settled_checks  the checks after the last fault
run             one seed from start to outcome
"""
