"""What the simulations `fleet` and `connect` share: the real herders with their config log and tasks, users, operators
and faults. Each of them has its own members of the group, and the checks of these.

settings        settings of all workers, and of each worker
config_log      the config topic that all workers read
cluster         the objects that all workers share
process         the state of one process of a worker that the invariant checks read
worker          one process of a worker: the real `herder` machine, tasks that take time and die (runtime), its client
                of the config log (config_client), its REST endpoints and its client of the leader (rest)
process_faults  the faults; the requests of users and operators (users, operators)
checker         the checks of the named invariants of workers
settled_checks  the checks after the last fault
"""
