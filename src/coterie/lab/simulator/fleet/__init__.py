"""The play of workers: the real members and herders of a fleet, their group, users and operators.

config_log   the config topic that all workers read
worker       one worker process: the real `herder` and `member` machines, and tasks that take time; its ways to the
             config log (reader) and to its leader, its users and operators (rest)
weather      what goes wrong, and when; what users and operators want (users, operators)
watch        the named invariants, of which those of one round (rounds, fewest) and of delays (waits)
calm         what must hold when all has calmed down
run          one seed from birth to verdict
"""
