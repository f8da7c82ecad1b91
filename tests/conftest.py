"""What all tests share: the `gpu` marker skips itself, and kernels can be run in the simulator."""

import pytest

from numbarnn import engines


def pytest_collection_modifyitems(items):
    problem = engines.why_not("cuda")
    if problem:
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason=problem))
