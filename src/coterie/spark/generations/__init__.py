"""Checkpoint generations. A checkpoint generation is the division of a connector's input between its tasks, with one
checkpoint for each task. When the division or the sink changes, a re-split closes the generation and creates the next
one from the tasks' positions: no row is lost or duplicated.
"""
