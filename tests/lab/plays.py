"""The plays whose transitions `test_states` judges. `test_simulator` judges the same runs: none is played twice."""

from functools import cache

import pytest

from coterie.lab.simulator.clients.run import simulate_clients
from coterie.lab.simulator.fleet.run import simulate
from coterie.lab.simulator.outcome import Outcome
from tests.lab.transitions import Observed

SEEDS = range(1, 41)
OBSERVED = Observed()
in_one_process = pytest.mark.xdist_group("states")
"""Of the tests that share these runs: where tests run side by side, one process has them all."""


@cache
def fleet(seed: int) -> Outcome:
    OBSERVED.play = f"fleet, seed {seed}"
    return simulate(seed, steps=OBSERVED)


@cache
def clients(seed: int) -> Outcome:
    OBSERVED.play = f"clients, seed {seed}"
    return simulate_clients(seed, steps=OBSERVED)
