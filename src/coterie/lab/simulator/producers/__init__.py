"""Producers with transactional ids, on a broker that dies: the real writes, the real store, and a reader of committed
records.

play      settings, and what one transaction is to hold
ledger    the topic as its readers get it
broker    the log's thread and its timers, one life after the other
producer  one process: batches that it numbers, sends again, commits or aborts
bundle    what a transaction holds, and what a consumer with read_committed makes of a partition
watch     the named invariants
weather   what happens to producers, beside the storm
run       one seed from birth to verdict
"""
