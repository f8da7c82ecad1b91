"""A layer made of the float64 reference, for tests of what measures layers: right, or wrong on purpose."""

from types import SimpleNamespace

import numpy as np

from numbarnn import reference
from numbarnn.bench.cases import pack_states, unpack_states


class StubEngine:
    """NumPy arrays in, NumPy arrays out."""

    name = "cpu"

    def from_host(self, array):
        return np.array(array)

    def to_host(self, array):
        return np.asarray(array)

    def set_num_threads(self, threads):
        self.threads = threads


class StubLayer:
    """The methods of layers that `check` and `bench` call. `spoil(quantity, array)` changes results."""

    def __init__(self, case, parameters, spoil=None):
        self.case, self.engine = case, StubEngine()
        self.weights = {name: array.astype(np.float64) for name, array in parameters.items()}
        self.spoil = spoil or (lambda quantity, array: array)

    def explain(self, shape):
        return "a stub\nstepwise forward: it can do no other"

    def __call__(self, x, state=None):
        result = self._run(x, state, None)
        return self._outputs(result)

    def forward(self, x, state=None):
        case, masks = self.case, None
        if case.masked:
            T, B = x.shape[1::-1] if case.batch_first else x.shape[:2]
            random = np.random.default_rng(T)
            kept = [random.random((T, B, case.D * H)) >= case.dropout for H in case.hidden[:-1]]
            masks = [np.asarray(keep / (1 - case.dropout), case.dtype) for keep in kept]
        result = self._run(x, state, masks)
        return *self._outputs(result), SimpleNamespace(result=result, masks=masks)

    def dropout_masks(self, tape):
        return [self.spoil("dropout mask", mask) for mask in tape.masks]

    def backward(self, tape, dy=None, dstate=None, *, dw=None):
        case = self.case
        dhy, dcy = self._states(dstate)
        dy = dy.swapaxes(0, 1) if dy is not None and case.batch_first else dy
        found = reference.backward(tape.result, dy, dhy, dcy)
        params = {name: self._cast(name, array) for name, array in found.params.items()}
        if dw is not None:
            params = {name: array + dw[name] for name, array in params.items()}
        dx = self._cast("dx", found.dx)
        state = self._pack("dhx", found.dhx)
        state = (state, self._pack("dcx", found.dcx)) if case.cell == "lstm" else state
        x = dx.swapaxes(0, 1) if case.batch_first else dx
        return SimpleNamespace(x=x, state=state, params=params, weights=params)

    def _states(self, state):
        if state is None:
            return None, None
        parts = state if self.case.cell == "lstm" else (state, None)
        return [None if part is None else unpack_states(self.case, part) for part in parts]

    def _run(self, x, state, masks):
        case = self.case
        h0, c0 = self._states(state)
        x = x.swapaxes(0, 1) if case.batch_first else x
        return reference.forward(case.cell, x, self.weights, h0, c0, masks=masks)

    def _outputs(self, result):
        y = self._cast("y", result.y)
        state = self._pack("hy", result.hy)
        state = (state, self._pack("cy", result.cy)) if self.case.cell == "lstm" else state
        return y.swapaxes(0, 1) if self.case.batch_first else y, state

    def _cast(self, quantity, array):
        return self.spoil(quantity, array.astype(self.case.dtype))

    def _pack(self, quantity, states):
        return pack_states(self.case, [self._cast(quantity, state) for state in states])


def use_stub(monkeypatch, spoil=None):
    """Makes `check` and `bench` see one engine, "cpu", whose layers are stubs."""
    engine = StubEngine()
    monkeypatch.setattr("numbarnn.engines.available", lambda: ["cpu"], raising=False)
    monkeypatch.setattr("numbarnn.engines.get", lambda device="auto": engine, raising=False)

    def make_layer(case, device, parameters, schedule="auto", seed=0):
        return StubLayer(case, parameters, spoil)

    monkeypatch.setattr("numbarnn.bench.cases.make_layer", make_layer)
    monkeypatch.setattr("numbarnn.bench.peers.make_layer", make_layer)
