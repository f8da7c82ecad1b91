"""How far a result is from float64, and how far it may be.

    error(value, expected) = max |value - expected| / max(1, max |expected|)
    floor(case)            = eps(dtype) * FUNCTION_ULPS + eps(compute dtype) * sqrt(longest sum)
    limit                  = max(floor, 2 * PyTorch's own error in the same dtype)

The inputs and gradients of a problem are of size 1, so errors are relative to the largest element or to 1,
whichever is larger. Rounding errors of a sum of n terms grow like sqrt(n) when they are independent; the longest
sums are those of a product over the inputs and the hidden units, and of the weight gradients over steps and
batch. FUNCTION_ULPS stands for the sigmoids and tanhs around the sums, right to an ulp or so each, and for the
rounding of float64's own reference. Half precision is storage: its sums are float32's. Where PyTorch is missing the
floor alone is the limit.
"""

from dataclasses import asdict, dataclass

import numpy as np

from numbarnn.cells import precision

FUNCTION_ULPS = 3
REFUSED = "refused"  # the mode of a case that a schedule cannot run
FRACTION_BITS = {"float64": 52, "float32": 23, "float16": 10, "bfloat16": 7}


@dataclass(frozen=True)
class Comparison:
    """One row of `numbarnn check`: one quantity of one run against float64.

    `error` is None when nothing could be compared; `message` then says why, and `ok` is False unless it was refused.
    """

    cell: str
    options: str
    engine: str
    schedule: str
    mode: str  # "inference", "single steps", "training" or REFUSED
    quantity: str
    error: float | None
    limit: float | None
    ok: bool
    torch_error: float | None = None
    message: str | None = None

    def as_row(self):
        """The comparison as a dict for JSON."""
        return asdict(self)

    @property
    def refused(self):
        """Whether the schedule refused the case: nothing was compared, and nothing is wrong."""
        return self.mode == REFUSED

    @property
    def share(self):
        """The error as a share of its limit: above 1 is a failure; infinite where there is no error."""
        if self.error is None or self.limit is None:
            return float("inf")
        return self.error / self.limit if self.limit else float("inf") if self.error else 0.0


def error(value, expected):
    """Largest absolute difference over the largest expected element or 1; NaN if `value` holds one."""
    value, expected = flat(value), flat(expected)
    if not expected.size:
        return 0.0
    return float(np.max(np.abs(value - expected)) / max(1.0, np.max(np.abs(expected))))


def flat(value):
    """An array, or a list of arrays (one per layer), as one float64 vector."""
    parts = value if isinstance(value, (list, tuple)) else [value]
    return np.concatenate([np.asarray(part, dtype=np.float64).ravel() for part in parts])


def eps(dtype):
    """Distance from 1 to the next number of the dtype (a name)."""
    return 2.0 ** -FRACTION_BITS[dtype]


def floor(case):
    """The error that is always allowed: see the module's docstring."""
    widest = max(case.layer_input_size(k) + H for k, H in enumerate(case.hidden))
    longest_sum = max(widest, case.T * case.B)
    summing = eps(precision.compute_dtype(case.dtype)) * float(np.sqrt(longest_sum))
    return eps(case.dtype) * FUNCTION_ULPS + summing


def limit(case, torch_error=None):
    """The largest error that passes: the floor, or twice PyTorch's own error where that is more."""
    return floor(case) if torch_error is None else max(floor(case), 2 * torch_error)


def shape_problem(value, expected, dtype):
    """What is wrong with the shape or dtype (a name) of a result, in words; None when nothing is."""
    values = value if isinstance(value, (list, tuple)) else [value]
    wanted = expected if isinstance(expected, (list, tuple)) else [expected]
    if any(part is None for part in values):
        return "no result: got None"
    got_shapes, shapes = [part.shape for part in values], [part.shape for part in wanted]
    if got_shapes != shapes:
        return f"shape {got_shapes}, expected {shapes}"
    dtypes = {str(part.dtype) for part in values}
    return f"dtype {', '.join(sorted(dtypes))}, expected {dtype}" if dtypes != {dtype} else None
