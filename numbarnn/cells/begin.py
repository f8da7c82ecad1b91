"""Make the initial values that a cell's equations set for its parameters."""

import math
from dataclasses import dataclass
from typing import ClassVar
from zlib import crc32

import numpy as np


def orthogonal(shape, rng):
    """Return a random matrix with orthonormal rows, or columns if they are fewer. Saxe et al. 2014, arXiv:1312.6120."""
    rows, columns = shape
    Q, R = np.linalg.qr(rng.standard_normal((max(shape), min(shape))))
    Q = Q * np.where(np.diag(R) < 0, -1.0, 1.0)
    return Q if rows >= columns else Q.T


def identity(shape, rng):
    """Return 1 on the diagonal, else 0. Le et al. 2015, arXiv:1504.00941."""
    return np.eye(*shape)


def xavier(shape, rng):
    """Draw uniformly from ±√(6 / (rows + columns)). Glorot and Bengio 2010."""
    bound = math.sqrt(6 / sum(shape))
    return rng.uniform(-bound, bound, shape)


BY_NAME = {"orthogonal": orthogonal, "identity": identity, "xavier": xavier}


@dataclass(frozen=True)
class Chrono:
    """Biases of a forget gate (sign 1) or input gate (-1): sign log u with u uniform in 1 to longest - 1.

    Tallec and Ollivier 2018, arXiv:1804.11188.
    """

    longest: float
    sign: float
    alike: ClassVar = "chrono"  # both gates get the same random numbers

    def __call__(self, shape, rng):
        return self.sign * np.log(rng.uniform(1, self.longest - 1, shape))


def checked(value):
    """Return a user's initial value as a float or a function of (shape, rng)."""
    expected = f"value must be a number, an array, a function of (shape, rng) or one of {', '.join(BY_NAME)}"
    if isinstance(value, str):
        if value not in BY_NAME:
            raise ValueError(f"{expected}, not {value!r}")
        return BY_NAME[value]
    if callable(value):
        return value
    try:
        array = np.array(value, np.float64)
    except (TypeError, ValueError) as error:
        raise TypeError(f"{expected}, not {value!r}") from error
    return (lambda shape, rng: array) if array.ndim else float(array)


def draw(value, shape, key, name):
    """Return a parameter's initial value, a number or array. value: result of `checked`.

    The ints of `key` and the parameter's name seed the random numbers, so that other parameters do not matter."""
    if isinstance(value, float):
        return value
    rng = np.random.default_rng([*key, crc32(getattr(value, "alike", name).encode())])
    what = getattr(value, "__name__", type(value).__name__)
    if value in BY_NAME.values() and len(shape) != 2:
        raise ValueError(
            f"p.{name} cannot be initialized as {what}, which is for matrices; expected a number or a function"
        )
    array = np.asarray(value(shape, rng), np.float64)
    if array.shape not in ((), tuple(shape)):
        raise ValueError(f"p.{name} has shape {tuple(shape)}, but its initial value ({what}) has shape {array.shape}")
    return np.broadcast_to(array, shape)
