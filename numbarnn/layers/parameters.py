"""A layer's parameters and gradients by name: views of flat buffers in the order of cuDNN's weight space."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from numbarnn.layers import array_checks
from numbarnn.layers.named import Named
from numbarnn.weights import WeightSpace


def initial_weights(stack, seed):
    """Draw every parameter of a layer uniform in ±1/√H, as PyTorch does. Also return an int to seed other draws."""
    generator = np.random.default_rng(seed)
    flat = np.empty(stack.space.size, dtype=stack.dtype)
    for part in stack.space.parameters:
        bound = 1.0 / math.sqrt(stack.hidden_sizes[part.layer])
        flat[part.offset : part.offset + part.size] = generator.uniform(-bound, bound, part.size)
    return flat, int(generator.integers(2**63))


class _ByName(dict):
    """Name -> array; an unknown name raises KeyError with the known ones."""

    def __missing__(self, name):
        raise KeyError(f"no parameter is called {name!r}: there are {', '.join(self)}")


@dataclass
class Gradients:
    """The gradients that `backward` returns.

    Attributes:
        x: gradient of x, (T, B, I), or (B, T, I) with `batch_first`, packed like x. None if `need` left it out.
        state: gradient of the initial state, in its form: (dhx, dcx) for the LSTM, else dhx.
        weights: gradients of all parameters, in the layout of the layer's `weights`. None if `need` left them out.
        states: name of a state -> list with the gradient of the state after each step for each layer, in the form of y;
            None unless `need` has "states".
        side: name -> gradient of the side input, where forward was given these by name; else None.
        params: name -> view of `weights`, with PyTorch's names.
        named: name -> view of `weights`, with the names of the cell's equations.
    """

    x: Any
    state: Any
    weights: Any
    _space: WeightSpace = field(repr=False)
    states: Any = None
    side: Any = None

    @cached_property
    def params(self) -> dict[str, Any]:
        return _ByName(self._space.views(self._checked()))

    @cached_property
    def named(self) -> Named:
        return Named(self._space, self._checked())

    def _checked(self):
        if self.weights is None:
            raise ValueError("there are no gradients of parameters: call backward with need=('x', 'weights')")
        return self.weights


class Parameters(Mapping[str, Any]):
    """Map names to views of a layer's weights. Assigning to a name copies values in; names cannot be added."""

    def __init__(self, stack: Any, weights: Any) -> None:
        self._engine, self._dtype, self._views = stack.engine, stack.dtype, _ByName(stack.space.views(weights))
        self.version = 0  # counts what is known to be written

    def __getitem__(self, name: str) -> Any:
        return self._views[name]

    def __setitem__(self, name: str, value: Any) -> None:
        if name not in self._views:
            raise KeyError(
                f"parameters must be one of {', '.join(self._views)}, got {name!r}: a layer gets no new ones"
            )
        self.write(self._views[name], value, f"parameters[{name!r}]")

    def __delitem__(self, name: str) -> None:
        raise TypeError("a layer's parameters cannot be deleted; for a layer without biases pass bias=False")

    def __iter__(self) -> Iterator[str]:
        return iter(self._views)

    def __len__(self) -> int:
        return len(self._views)

    def __repr__(self):
        return repr(self._views)

    def write(self, view: Any, value: Any, name: str) -> None:
        """Copy a value into a view, unless it is the view itself (after `view += ...`)."""
        if value is not view:
            engine, expected = self._engine, (name, view.shape, self._dtype)
            with engine.activate():
                if hasattr(value, "__cuda_array_interface__"):
                    view[...] = array_checks.array(engine, value, *expected)
                else:
                    view[...] = engine.from_host(array_checks.host_array(value, *expected))
        self.version += 1
