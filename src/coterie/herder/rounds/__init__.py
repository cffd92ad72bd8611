"""How a herder takes part in the rounds of a classic group, and leads them.

These modules alone know the embedded Connect protocol (`wire.connect`): the tokens of a round, the error of a failed
one, what an eager round is. `state` holds what is remembered from round to round, `following` takes part, `leading`
computes, `bursts` and `asking` say when the next round is due, `spoken` answers what the group's protocol allows.
"""
