"""The simulator: the real machines on a virtual clock, in a world that loses, delays, stops and kills.

world        the clock, the one source of chance, the trace
network      how messages travel, and how they do not
coordinator  the real `groups` machine, with an outbox, timers and a disk that may forget its tail
config_log   the config topic that all workers read
worker       one worker process: the real `herder` and `member` machines, and tasks that take time; its ways to the
             config log (reader) and to its leader, its users and operators (rest)
weather      what goes wrong, and when; what users and operators want (users, operators)
watch        the named invariants (invariants), of which those of one round (rounds, fewest) and of delays (waits)
calm         what must hold when all has calmed down
run          one seed from birth to verdict

Two more plays share the world, the network and the storm: `clients` are ordinary members of one group, `producers` have
transactions.
"""
