"""A herder's part in the rounds of a classic group, as a member and as the leader.

A round is one JoinGroup with its SyncGroup: a rebalance consists of one round or of several. Of the herder's modules,
only these use the embedded Connect protocol (`wire.connect`): the token of a round, the error of a failed round, eager
rounds. `state` contains the state that remains from one round to the next, `following` is a member's part, `leading`
computes assignments as the leader, `rebalance_window` and `rejoin` decide when this worker requests a round,
`protocol_features` states what the group's protocol version supports.
"""
