"""What a case's results should be, by the float64 reference, and what its peers make of it: PyTorch and cuDNN."""

from dataclasses import dataclass

import numpy as np

from numbarnn import reference
from numbarnn.bench.cases.cases import PEERS_CELLS, SEED, TRACED_CELLS
from numbarnn.bench.cases.own_cell import DROPPED, ZONEOUT
from numbarnn.bench.check import accuracy
from numbarnn.bench.peers import cudnn_peer, peers
from numbarnn.bench.peers.cudnn_peer import Refused
from numbarnn.common import precision
from numbarnn.reference import layer_norm_rnn, philox


@dataclass(frozen=True)
class Expectation:
    """What a case's results should be, and what peers make of it.

    Attributes:
        truth: the reference's results by quantity. torch, cudnn: those of peers; None where one does not run the case.
        cudnn_refusal: why cuDNN does not, in its words; None where it was not asked.
    """

    truth: dict
    torch: dict | None = None
    cudnn: dict | None = None
    cudnn_refusal: str | None = None

    def errors(self, quantity):
        """{"torch_error": ..., "cudnn_error": ...} of a quantity; None where the peer gives none."""
        peers = {"torch_error": self.torch or {}, "cudnn_error": self.cudnn or {}}
        return {
            name: accuracy.error(results[quantity], self.truth[quantity]) if quantity in results else None
            for name, results in peers.items()
        }

    def after(self, earlier, parameters):
        """The same, with the parameters' gradients of an earlier pass, an `Expectation`, added."""

        def total(own, others):
            if own is None or others is None:
                return None
            return own | {name: own[name] + others[name] for name in own if name in parameters}

        pairs = ((getattr(self, name), getattr(earlier, name)) for name in ("truth", "torch", "cudnn"))
        return Expectation(*(total(*pair) for pair in pairs), self.cudnn_refusal)


class Expected:
    """The expectations of one instance: computed once for all schedules, and once for each training call that draws.

    Args:
        with_cudnn: whether cuDNN is asked.
        with_torch: whether PyTorch is asked, where it is installed: on the CPU, where large problems take long.
    """

    def __init__(self, instance, with_cudnn=False, with_torch=True):
        self.instance, self.with_cudnn, self.with_torch = instance, with_cudnn, with_torch
        self._known = {}  # number of a training call, None: nothing is drawn -> Expectation

    def results(self, call=None):
        """The `Expectation` of training call number `call`; None: of inference."""
        call = call if self.instance.case.draws else None
        if call not in self._known:
            self._known[call] = self._expectation(call)
        return self._known[call]

    def of_training(self):
        """The `Expectation` of the last training call that a case makes: see `command.run_training`."""
        calls, instance = self.instance.case.training_calls, self.instance
        expectation = self.results(calls - 1)
        for earlier in range(calls - 1) if instance.case.accumulate else ():
            expectation = expectation.after(self.results(earlier), instance.parameters)
        return expectation

    def _expectation(self, call):
        instance = self.instance
        truth, masks = reference_results(instance, call), dropout_masks(instance.case, call)
        asks = self.with_torch and instance.case.cell in PEERS_CELLS and peers.installed("torch")
        torch = peers.torch_results(instance, masks) if asks else None
        cudnn = refusal = None
        if self.with_cudnn:
            try:
                cudnn = cudnn_peer.cudnn_results(instance, masks)
            except Refused as reason:
                refusal = str(reason)
        return Expectation(truth, torch, cudnn, refusal)

    def notes(self):
        """What there is to tell about the peers: pairs of a name and a sentence."""
        found = []
        for expectation in self._known.values():
            if expectation.cudnn_refusal is not None:
                found.append(("cuDNN", f"refuses: {expectation.cudnn_refusal}"))
            for name, key in (("PyTorch", "torch_error"), ("cuDNN", "cudnn_error")):
                errors = {quantity: expectation.errors(quantity)[key] for quantity in expectation.truth}
                case = self.instance.case
                wrong = {q: e for q, e in errors.items() if e is not None and accuracy.trusted(case, e) is None}
                if wrong:
                    list_of = ", ".join(f"{quantity} {error:.1e}" for quantity, error in wrong.items())
                    found.append((name, f"computes something else, as far from float64: {list_of}"))
        return list(dict.fromkeys(found))


def dropout_masks(case, call):
    """What the outputs of all layers but the last are multiplied by in training call number `call`, by the independent
    generator: a list of (T, B, D*H_l); None where nothing is dropped, and for call None, which is inference."""
    if call is None or not case.masked:
        return None
    shapes = [(case.T, case.B, case.D * width) for width in case.outputs[:-1]]
    return philox.dropout_masks(shapes, case.dropout, SEED, call, precision.numpy_dtype(case.dtype))


def run_reference(case, call, x, parameters, h0=None, c0=None, **sequences):
    """(result, backward) of `numbarnn.reference` for a case: what its forward returns in training call number `call`
    (None: in inference), and the function backward(result, dy, dhy, dcy). sequences: lengths, resets, padding_value.

    The LSTM that is written as equations is the LSTM, the other such cell has a reference of its own.
    """
    options = {"masks": dropout_masks(case, call)} | sequences
    if case.cell == "layer_norm_rnn":
        return layer_norm_rnn.forward(x, parameters, h0, **drawn(case, call), **options), layer_norm_rnn.backward
    options |= {"cell_clip": case.cell_clip, "clip_propagate_nan": case.clip_propagate_nan}
    cell = case.cell.removeprefix("traced_")
    return reference.forward(cell, x, parameters, h0, c0, **options), reference.backward


def drawn(case, call):
    """What layer_norm_rnn draws in training call number `call`, as its reference takes it; in inference the mean."""
    if call is None:
        return {"kept": 1 - ZONEOUT}
    places = [[(layer * case.D + direction, H) for direction in range(case.D)] for layer, H in enumerate(case.hidden)]
    return {
        "kept": [[philox.zoneout_kept(case.T, case.B, H, ZONEOUT, SEED, place, call) for place, H in layer]
                 for layer in places],
        "dropped": [[philox.dropped_weights(1, H, DROPPED, SEED, place, call, "float64")
                     for place, H in layer] for layer in places],
    }  # fmt: skip


def flat_weights(instance):
    """A built-in layer's parameters in cuDNN's order: the matrices of layer after layer and direction after direction,
    then the biases likewise. None where the layer has more than these."""
    case = instance.case
    if case.cell in TRACED_CELLS or case.proj_size:
        return None
    places = [f"_l{layer}{suffix}" for layer in range(case.L) for suffix in ("", "_reverse")[: case.D]]
    order = [kind + place for kinds in (("weight_ih", "weight_hh"), ("bias_ih", "bias_hh")) for place in places
             for kind in kinds]  # fmt: skip
    return np.concatenate([instance.parameters[name].ravel() for name in order if name in instance.parameters])


def reference_results(instance, call=None):
    """Results of `numbarnn.reference`, forward and backward, by quantity; forward alone where the case is.

    Of training call number `call`, or of inference. ArithmeticError: one holds a NaN that the case does not bring.
    """
    case = instance.case
    options = {"lengths": instance.lengths, "resets": instance.resets, "padding_value": case.padding_value}
    forward, backward = run_reference(case, call, instance.x, instance.parameters, instance.h0, instance.c0, **options)
    results = {"y": forward.y, "hy": forward.hy}
    results |= {"cy": forward.cy} if case.has_c else {}
    if not case.forward_only:
        gradients = backward(forward, instance.dy, instance.dhy, instance.dcy)
        results |= {"dx": gradients.dx, "dhx": gradients.dhx} | gradients.params
        results |= {"dcx": gradients.dcx} if case.has_c else {}
    for quantity, value in results.items():
        if not case.nan_state and np.isnan(accuracy.flat(value)).any():
            raise ArithmeticError(f"the float64 reference has a NaN in {quantity}")
    return results
