"""The simulation of producers with transactional ids, on a broker that crashes: the real writes, the real store, and a
read_committed reader.

play      the objects that all producers share, and the protocol versions
ledger    the topic as its readers receive it
broker    the log's thread and its timers, which crash and restart
producer  one process: it numbers its batches, sends them again, commits or aborts
bundle    the contents of a transaction, and the read_committed filter of a consumer
watch     the checks of the named invariants
weather   the faults of producers, in addition to the storm
run       one seed from start to result
"""
