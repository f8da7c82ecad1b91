"""A layer made of the float64 reference, for tests of what measures layers: right, or wrong on purpose."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np

import numbarnn
from numbarnn.bench import expected
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

    def give_back_memory(self):
        pass


class StubLayer:
    """The methods of layers that `check` and `bench` call. `spoil(quantity, array)` changes results."""

    def __init__(self, case, parameters, spoil=None):
        self.case, self.engine, self.calls = case, StubEngine(), 0
        self.parameters = {name: array.astype(np.float64) for name, array in parameters.items()}
        self.spoil = spoil or (lambda quantity, array: array)

    def explain(self, shape):
        return "a stub\nstepwise forward: it can do no other"

    def __call__(self, x, state=None, **options):
        return self._outputs(self._run(x, state, None, **options), x)

    def forward(self, x, state=None, **options):
        result = self._run(x, state, self.calls, **options)
        self.calls += 1
        return *self._outputs(result, x), SimpleNamespace(result=result, x=x)

    def backward(self, tape, dy=None, dstate=None, *, dw=None, need=("x", "weights"), retain=False):
        case = self.case
        dhy, dcy = self._states(dstate)
        found = self.backward_of(tape.result, None if dy is None else self._unpacked(dy)[0], dhy, dcy)
        params = {name: self._cast(name, array) for name, array in found.params.items()}
        if dw is not None:
            params = {name: array + dw[name] for name, array in params.items()}
        state = self._pack("dhx", found.dhx)
        state = (state, self._pack("dcx", found.dcx)) if case.has_c else state
        x = self._packed(self._cast("dx", found.dx), tape.x) if "x" in need else None
        params = params if "weights" in need else None
        return SimpleNamespace(x=x, state=state, params=params, weights=params)

    def _states(self, state):
        if state is None:
            return None, None
        parts = state if self.case.has_c else (state, None)
        return [None if part is None else unpack_states(self.case, part) for part in parts]

    def _run(self, x, state, call, lengths=None, resets=None, padding_value=0.0):
        """What the reference computes in training call number `call`; None: in inference."""
        case = self.case
        h0, c0 = self._states(state)
        x, packed_lengths = self._unpacked(x)
        lengths = lengths if packed_lengths is None else packed_lengths
        resets = resets.T if resets is not None and case.batch_first and packed_lengths is None else resets
        options = {"lengths": lengths, "resets": resets, "padding_value": padding_value}
        result, self.backward_of = expected.run_reference(case, call, x, self.parameters, h0, c0, **options)
        return result

    def _unpacked(self, x):
        """A packed or batch-first x as (T, B, n), and the lengths of a packed one, else None."""
        if not isinstance(x, np.ndarray):
            return numbarnn.pad_packed_sequence(x)
        return (x.swapaxes(0, 1) if self.case.batch_first else x), None

    def _packed(self, y, like):
        """The reverse of `_unpacked`: y in the form of `like`."""
        if not isinstance(like, np.ndarray):
            return replace(like, data=numbarnn.pack_padded_sequence(y, self._unpacked(like)[1]).data)
        return y.swapaxes(0, 1) if self.case.batch_first else y

    def _outputs(self, result, x):
        y = self._cast("y", result.y)
        state = self._pack("hy", result.hy)
        state = (state, self._pack("cy", result.cy)) if self.case.has_c else state
        return self._packed(y, x), state

    def _cast(self, quantity, array):
        return self.spoil(quantity, array.astype(self.case.dtype))

    def _pack(self, quantity, states):
        return pack_states([self._cast(quantity, state) for state in states])


def use_stub(monkeypatch, spoil=None):
    """Makes `check` and `bench` see one engine, "cpu", whose layers are stubs."""
    engine = StubEngine()
    monkeypatch.setattr("numbarnn.engines.available", lambda: ["cpu"], raising=False)
    monkeypatch.setattr("numbarnn.engines.get", lambda device="auto": engine, raising=False)

    def make_layer(case, device, parameters, schedule="auto", seed=0):
        return StubLayer(case, parameters, spoil)

    monkeypatch.setattr("numbarnn.bench.cases.make_layer", make_layer)
    monkeypatch.setattr("numbarnn.bench.peers.peers.make_layer", make_layer)
