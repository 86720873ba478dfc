"""Any bytes in any order: a bad message costs an error reply, and the session lives. `make fuzz` does more of it."""

import asyncio

import pytest
from helpers_fuzz import BatchClient, Dice, JsonClient, registry_for_fuzzing
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st


@pytest.fixture(scope="module")
def registry():
    return registry_for_fuzzing()


@pytest.fixture(scope="module")
def runner():
    loop = asyncio.new_event_loop()
    yield loop.run_until_complete
    loop.close()


@pytest.mark.parametrize("client", [BatchClient, JsonClient])
@given(data=st.binary(min_size=20, max_size=300))
@settings(
    deadline=None, max_examples=150, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
)
def test_a_session_survives_any_bytes_in_any_order(client, registry, runner, data):
    runner(client(registry).play(Dice(data)))
