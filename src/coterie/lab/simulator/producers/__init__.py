"""The simulation of producers with transactional ids, on a broker that crashes: the real writes, the real store, and a
read_committed reader.

play                  the objects that all producers share, and the protocol versions
sim_topic             the topic as its readers receive it
broker                the log's thread and its timers, which crash and restart
producer              one process: it numbers its batches, sends them again, commits or aborts
transaction_contents  the contents of a transaction, and the read_committed filter of a consumer
checker               the checks of the named invariants
process_faults        the start and the faults of producers, in addition to the faults of links, disk and broker
run                   the simulation with one seed, from start to outcome
"""
