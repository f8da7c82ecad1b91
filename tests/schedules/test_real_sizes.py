"""Persistent kernels of the recorded benchmark sizes, compiled and executed as on an H100 or H200.

    export NUMBARNN_TEST_GPU=emulated NUMBARNN_TEST_GPU_SMS=132
    python -m pytest -m "gpu and (full or not full)" tests/schedules/test_real_sizes.py

With -m full tests/test_emulated.py executes all of them.
"""

from dataclasses import replace

import pytest

import real_sizes
from numbarnn import engines
from numbarnn.bench import accuracy
from numbarnn.engines.gpu import profiles

pytestmark = pytest.mark.gpu
USUAL = ("lstm-float16-1024,16,768,768,1",)


@pytest.fixture(scope="module")
def profile():
    """The device's profile, which must have an H100's number of SMs."""
    found = engines.get("cuda").profile
    if found.multiprocessors != real_sizes.MULTIPROCESSORS:
        pytest.skip(f"needs {real_sizes.MULTIPROCESSORS} SMs; on the emulated GPU set NUMBARNN_TEST_GPU_SMS=132")
    return found


def test_the_emulated_gpu_plans_as_an_h200(profile):
    if profile.name != "emulated GPU":
        pytest.skip("the device is no emulated GPU")
    expected = profiles.get("h200")
    assert replace(profile, name=expected.name) == expected


@pytest.mark.parametrize(
    "problem",
    [
        pytest.param(problem, id=name, marks=[] if name in USUAL else pytest.mark.full)
        for problem in real_sizes.PROBLEMS
        for name in [real_sizes.name_of(problem)]
    ],
)
def test_real_sizes_agree_with_float64(profile, monkeypatch, record_property, problem):
    """Every result and gradient stays within the limit of `numbarnn check`. No recorded problem is refused."""
    launches, comparisons = real_sizes.run(problem, monkeypatch)
    for launch in launches:
        record_property("launch", f"{'backward' if launch.backward else 'forward'} {launch}; {launch.tile}")
    worst = max(comparisons, key=lambda row: accuracy.share_of_limit(row["error"], row["limit"]))
    record_property("worst", "{quantity} {error} of {limit}".format(**worst))
    assert {launch.backward for launch in launches} == {False, True}
    wrong = ["{quantity}: {error} of {limit} {message}".format(**one) for one in comparisons if not one["ok"]]
    assert not wrong, "\n".join(wrong)
