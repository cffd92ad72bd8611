"""The simulator: the real machines on a virtual clock, with a network that loses and delays messages, and with
processes that are paused and killed.

world        the clock, the one source of random numbers, the trace
network      delivery, delay and loss of messages
actor        a process: it starts, is paused and resumed, and is killed
coordinator  the real `groups` machine, with an outbox, timers and a disk that may lose its unacknowledged writes
faults       faults of every simulation: of processes, and of links, disk and coordinator (storm)
invariants   the named invariants

Three simulations share them: `fleet` has workers, `clients` has ordinary members of one group, `producers` has
producers with transactions.
"""
