"""The simulator: the real machines on a virtual clock, with a network that loses and delays messages, and with
processes that are paused and killed.

world                  the clock, the one source of random numbers, the trace
network                delivery, delay and loss of messages
sim_process            a process: it starts, is paused and resumed, and is killed
coordinator            the real `groups` machine, with an outbox, timers and a disk that may lose unacknowledged writes
durable, replay        the group as its durable records give it, compared with responses and with the live group
faults                 the injection of random faults, and the faults of processes that all simulations have
infrastructure_faults  the faults of links, disk and coordinator
invariants             the named invariants
records, outcome       what a simulation records for its digest, and its outcome

Four simulations share these modules: `fleet` has workers in a classic group, `connect` has workers in a connect group,
`clients` has ordinary members of one group, `producers` has producers with transactions. What simulations of workers
share is in `workers`.
"""
