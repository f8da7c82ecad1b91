"""How far a result is from float64, and how far it may be.

    error(value, expected) = max |value - expected| / max(1, max |expected|)
    floor(case)            = (eps(dtype) * FUNCTION_ULPS + eps(compute dtype) * sqrt(longest sum)) * stages
    limit                  = max(floor, 2 * the peer's own error in the same dtype, if it is one of rounding)

The peer is cuDNN if it ran, else PyTorch. Without a peer the floor is the limit. Rounding errors of a sum of n terms
grow like sqrt(n); the longest sums are those over inputs and hidden units, and over steps and batch. FUNCTION_ULPS
covers the sigmoids and tanhs around the sums. Half precision is stored, but summed in float32. `stages` is 1, and 3 for
a cell with a normalization. A peer whose error exceeds PEER_TRUST floors computes something else and is ignored.
"""

import numpy as np

from numbarnn.common import precision

FUNCTION_ULPS = 3
STAGES = {"layer_norm_rnn": 3}
PEER_TRUST = 4  # floors
FRACTION_BITS = {"float64": 52, "float32": 23, "float16": 10, "bfloat16": 7}


def error(value, expected):
    """Return the largest absolute difference, relative to the largest expected element if that is above 1.

    It is NaN if only one of them holds a NaN at some place."""
    value, expected = flattened(value), flattened(expected)
    missing = np.isnan(expected)
    if not np.array_equal(np.isnan(value), missing):
        return float("nan")
    value, expected = value[~missing], expected[~missing]
    return float(np.max(np.abs(value - expected)) / max(1.0, np.max(np.abs(expected)))) if expected.size else 0.0


def flattened(value):
    """Return an array, or a list of arrays (one per layer), as one float64 vector."""
    return np.concatenate([np.asarray(part, dtype=np.float64).ravel() for part in _parts(value)])


def _parts(value):
    return value if isinstance(value, (list, tuple)) else [value]


def shape_problem(value, expected, dtype):
    """Describe what is wrong with the shape or dtype (a name) of a result; None if nothing is."""
    values, shapes = _parts(value), [part.shape for part in _parts(expected)]
    if any(part is None for part in values):
        return "no result: got None"
    if (got_shapes := [part.shape for part in values]) != shapes:
        return f"shape {got_shapes}, expected {shapes}"
    dtypes = {str(part.dtype) for part in values}
    return f"dtype {', '.join(sorted(dtypes))}, expected {dtype}" if dtypes != {dtype} else None


def floor(case):
    """Return the error that is always allowed."""
    widest = max(case.layer_input_size(k) + max(H, case.outputs[k]) for k, H in enumerate(case.hidden))
    storing, adding = (2.0 ** -FRACTION_BITS[dtype] for dtype in (case.dtype, precision.compute_dtype(case.dtype)))
    summing = adding * float(np.sqrt(max(widest, case.T * case.B)))
    return (storing * FUNCTION_ULPS + summing) * STAGES.get(case.cell, 1)


def limit(case, peer_error=None):
    """Return the largest error that passes."""
    return max(floor(case), 2 * (trusted(case, peer_error) or 0.0))


def trusted(case, peer_error):
    """Return the peer's error if rounding explains it, else None."""
    return peer_error if peer_error is not None and peer_error <= PEER_TRUST * floor(case) else None


def share_of_limit(error, limit):
    """Return error / limit: above 1 is a failure, infinite if either is unknown."""
    return float("inf") if error is None or limit is None else quotient(error, limit, 0.0)


def quotient(a, b, of_zeros):
    """Return a / b; of_zeros if both are 0."""
    return a / b if b else float("inf") if a else of_zeros
