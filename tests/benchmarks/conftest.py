"""Times are taken on request only: `python -m pytest tests/benchmarks --benchmark-only`."""


def pytest_ignore_collect(config):
    return None if config.getoption("benchmark_only", False) else True
