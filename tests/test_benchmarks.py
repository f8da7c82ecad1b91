"""The suite in tests/benchmarks is there for who asks for it, and no part of an ordinary run."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pytest_benchmark")
ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize(("asked", "there"), [([], False), (["--benchmark-only"], True)])
def test_times_are_taken_on_request(asked, there):
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--collect-only", "tests/benchmarks", *asked]
    env = {name: value for name, value in os.environ.items() if "XDIST" not in name}  # there nothing is timed
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=env)
    assert ("test_layer_times.py" in ran.stdout) == there, ran.stderr
