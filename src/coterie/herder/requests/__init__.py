"""The requests that a herder receives through the REST API, and its responses, by kind.

Configs and error texts about their values are left out of every ``repr``: they may contain passwords, and requests are
traced.
"""
