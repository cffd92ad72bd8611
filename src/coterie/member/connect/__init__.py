"""The member of a connect group (K848C): its state machine."""
