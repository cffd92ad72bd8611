"""The simulator: the real machines on a virtual clock, in a world that loses, delays, stops and kills.

world        the clock, the one source of chance, the trace
network      how messages travel, and how they do not
actor        a process: lives, is paused and resumed, is killed
coordinator  the real `groups` machine, with an outbox, timers and a disk that may forget its tail
faults       what goes wrong in every play, also between processes and the coordinator (storm)
invariants   the named invariants

Three plays share them: `fleet` has workers, `clients` are ordinary members of one group, `producers` have transactions.
"""
