"""The play of workers: the real members and herders of a fleet, their group, users and operators.

settings     settings of all workers, and of each
config_log   the config topic that all workers read
cluster      what the workers share
process      one process of a worker, as the watch sees it
worker       what that process does: the real `herder` and `member` machines, tasks that take time and die (runtime);
             its ways to the config log (config_client) and to its leader, its users and operators (rest)
weather      what goes wrong, and when; what users and operators want (users, operators)
watch        the named invariants, of which those of one round (rounds, fewest) and of delays (waits)
calm         what must hold when all has calmed down
run          one seed from birth to verdict
"""
