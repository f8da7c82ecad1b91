"""The kernels that note and compare fingerprints, in the simulator: the host's fingerprints, whatever the grid."""

import numpy as np
import pytest

from numbarnn.engines.cpu import fingerprints
from numbarnn.kernels.arrays import fingerprint, samples
from numbarnn.kernels.error_flag import CHANGED, code_of, explain


@pytest.fixture
def arrays():
    """Weights and h as a GPU keeps them, and which lines are watched: of h not all."""
    rng = np.random.default_rng(0)
    weights, h = rng.standard_normal(220).astype(np.float32), rng.standard_normal((30, 3, 5)).astype(np.float32)
    return (weights, h), (samples.places([(0, 80, 1), (80, 100, 1), (180, 40, 1)]), samples.places([(0, 450, 3)]))


def noted(arrays, places):
    seen, trouble = np.zeros((samples.MOST_ARRAYS, samples.BLOCKS), np.uint64), np.zeros(1, np.int64)
    fingerprint.note(seen, arrays, places, trouble)
    assert not trouble[0]
    return seen, trouble


def test_blocks_together_have_the_hosts_fingerprint(arrays):
    seen, _ = noted(*arrays)
    assert tuple(np.bitwise_xor.reduce(seen, axis=1).tolist()) == fingerprints.watch(*arrays)()


@pytest.mark.parametrize("which", (0, 1))
def test_every_changed_word_that_is_read_is_trouble(arrays, which):
    (given, places), words = arrays, arrays[0][which].reshape(-1)
    seen, trouble = noted(given, places)
    read = (places[which][:, None] + np.arange(samples.LINE)).reshape(-1)
    for i in read[read < words.size][::9]:
        words[i] = -words[i]
        fingerprint.compare(seen, given, places, trouble)
        assert trouble[0] == code_of(CHANGED, which)
        assert f"failed: {('the weights were', 'y, which')[which]}" in explain(int(trouble[0]), "a layer")
        words[i], trouble[0] = -words[i], 0
    fingerprint.compare(seen, given, places, trouble)
    assert not trouble[0]


def test_halves_are_words_of_their_own():
    halves = np.random.default_rng(0).standard_normal(37).astype(np.float16)  # an odd number of them
    seen, trouble = noted((halves,), (samples.places([(0, 37, 1)]),))
    halves[36] = -halves[36]
    fingerprint.compare(seen, (halves,), (samples.places([(0, 37, 1)]),), trouble)
    assert trouble[0] == code_of(CHANGED, 0)
