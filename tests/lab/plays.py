"""The plays that several tests check: none is played twice. `test_states` checks the transitions of `SEEDS`."""

from functools import cache

import pytest

from coterie.lab.simulator.clients.run import simulate_clients
from coterie.lab.simulator.connect.run import simulate_connect_group
from coterie.lab.simulator.fleet.run import simulate_fleet
from coterie.lab.simulator.outcome import SimulationOutcome
from coterie.lab.simulator.producers.run import simulate_producers
from coterie.lab.steps import PLAIN_STEPS
from tests.lab.transitions import Observed

SEEDS = range(1, 41)
CLIENTS_SEEDS = range(1, 61)
PRODUCERS_SEEDS = range(1, 21)
STORY_LINES = 5_000
"""The number of lines that a world keeps: more than a play has, because some tests search the stories."""
OBSERVED = Observed()
in_one_process = pytest.mark.xdist_group("plays")
"""Marks the tests that share these plays: in a parallel run one process runs all of them."""


@cache
def fleet(seed: int) -> SimulationOutcome:
    OBSERVED.play = f"fleet, seed {seed}"
    return simulate_fleet(seed, trace_lines=STORY_LINES, steps=OBSERVED)


@cache
def connect(seed: int) -> SimulationOutcome:
    return simulate_connect_group(seed, trace_lines=STORY_LINES)


@cache
def clients(seed: int) -> SimulationOutcome:
    OBSERVED.play = f"clients, seed {seed}"
    return simulate_clients(seed, trace_lines=STORY_LINES, steps=OBSERVED if seed in SEEDS else PLAIN_STEPS)


@cache
def producers(seed: int) -> SimulationOutcome:
    return simulate_producers(seed, trace_lines=STORY_LINES)


BY_NAME = {"fleet": fleet, "connect": connect, "clients": clients, "producers": producers}
