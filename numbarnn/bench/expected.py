"""Compute a case's expected results by the float64 reference, and the results of PyTorch and cuDNN."""

from contextlib import suppress

import numpy as np

from numbarnn import reference
from numbarnn.bench import accuracy
from numbarnn.bench.cases import DROPPED, PEERS_CELLS, SEED, ZONEOUT
from numbarnn.bench.peers import cudnn_peer, torch_peer
from numbarnn.bench.peers.contender import installed
from numbarnn.common import precision
from numbarnn.reference import layer_norm_rnn, philox

PEERS = ("torch", "cudnn")


class Expected:
    """Results of one instance by name: "truth" (the reference) and those PEERS that run it, PyTorch on the CPU.

    They are computed once for all schedules."""

    def __init__(self, instance, with_cudnn=False, with_torch=True):
        self.instance, self.with_cudnn, self._known = instance, with_cudnn, {}
        self.with_torch = with_torch and instance.case.cell in PEERS_CELLS

    def results(self, call=None):
        """Return name -> results by quantity. call: number of the training call; None: inference."""
        call = call if self.instance.case.draws else None
        if call not in self._known:
            instance, masks = self.instance, masks_of_case(self.instance.case, call)
            results = {"truth": reference_results(instance, call)}
            if self.with_torch and installed("torch"):
                results["torch"] = torch_peer.torch_results(instance, masks) or {}
            if self.with_cudnn:
                with suppress(cudnn_peer.Refused):
                    results["cudnn"] = cudnn_peer.cudnn_results(instance, masks)
            self._known[call] = results
        return self._known[call]

    def of_training(self):
        """Return the results of a case's last training call, as `check.run_training` makes it."""
        case, parameters = self.instance.case, self.instance.parameters
        results = self.results(case.training_calls - 1)
        for earlier in map(self.results, range(case.training_calls - 1) if case.accumulate else ()):
            results = {who: one | {name: one[name] + earlier[who][name] for name in one if name in parameters}
                     for who, one in results.items()}  # fmt: skip
        return results


def errors_of(results, quantity):
    """Return peer -> its error in a quantity; None if it has no result. results: from `Expected.results`."""
    values = {peer: results.get(peer, {}).get(quantity) for peer in PEERS}
    return {peer: None if value is None else accuracy.error(value, results["truth"][quantity])
            for peer, value in values.items()}  # fmt: skip


def masks_of_case(case, call):
    """Return the dropout factors of all layers but the last, a list of (T, B, D*H_l), drawn by the reference.

    call: number of the training call. None without dropout and in inference."""
    if call is None or not case.masked:
        return None
    shapes = [(case.T, case.B, case.D * width) for width in case.outputs[:-1]]
    return philox.dropout_masks(shapes, case.dropout, SEED, call, precision.numpy_dtype(case.dtype))


def run_reference(case, call, x, parameters, h0=None, c0=None, **sequences):
    """Run the reference forward. Return its result, and its backward, a function (result, dy, dhy, dcy).

    call: number of the training call; None: inference. sequences: lengths, resets, ..."""
    options = {"masks": masks_of_case(case, call)} | sequences
    if case.cell == "layer_norm_rnn":
        return layer_norm_rnn.forward(x, parameters, h0, **drawn(case, call), **options), layer_norm_rnn.backward
    options |= {"cell_clip": case.cell_clip, "clip_propagate_nan": case.clip_propagate_nan}
    return reference.forward(case.cell.removeprefix("traced_"), x, parameters, h0, c0, **options), reference.backward


def drawn(case, call):
    """Return the random numbers of layer_norm_rnn in a training call; in inference (None) their mean."""
    if call is None:
        return {"kept": 1 - ZONEOUT}
    places = [[(layer * case.D + direction, H) for direction in range(case.D)] for layer, H in enumerate(case.hidden)]
    kept = [[philox.zoneout_kept(case.T, case.B, H, ZONEOUT, SEED, place, call) for place, H in row] for row in places]
    dropped = [[philox.dropped_weights(1, H, DROPPED, SEED, place, call, "float64") for place, H in row]
               for row in places]  # fmt: skip
    return {"kept": kept, "dropped": dropped}


def reference_results(instance, call=None):
    """Return the reference's results by quantity. Raise ArithmeticError if one holds a NaN without cause."""
    case = instance.case
    options = {"lengths": instance.lengths, "resets": instance.resets, "padding_value": case.padding_value}
    forward, backward = run_reference(case, call, instance.x, instance.parameters, instance.h0, instance.c0, **options)
    results = {"y": forward.y, "hy": forward.hy} | ({"cy": forward.cy} if case.has_c else {})
    if not case.forward_only:
        gradients = backward(forward, instance.dy, instance.dhy, instance.dcy)
        results |= {"dx": gradients.dx, "dhx": gradients.dhx} | gradients.params
        results |= {"dcx": gradients.dcx} if case.has_c else {}
    for quantity, value in results.items():
        if not case.nan_state and np.isnan(accuracy.flattened(value)).any():
            raise ArithmeticError(f"the float64 reference has a NaN in {quantity}")
    return results
