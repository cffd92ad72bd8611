"""A herder's part in the rounds of a classic group, as a member and as the leader.

A round is one JoinGroup with its SyncGroup: a rebalance consists of one round or of several. Of the herder's modules,
only these use the embedded Connect protocol (`wire.connect`): the token of a round, the error of a failed round, eager
rounds. `state` contains the state that is kept from round to round, `following` is a member's part, `leading` computes
assignments as the leader, `bursts` and `asking` decide when the next round is due, `spoken` contains the features of
the group's protocol version.
"""
