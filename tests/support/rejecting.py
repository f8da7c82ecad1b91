"""Wrong arguments, and what a message must say of them."""

import numpy as np
import pytest


def raises(error, *words):
    """pytest.raises for an error whose message has all the words, in this order."""
    return pytest.raises(error, match="(?s)" + ".*".join(words))


def ones(*shape, dtype=np.float32):
    return np.ones(shape, dtype)
