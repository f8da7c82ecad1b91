"""cuDNN, called directly, on the problems of `cases`: its results in the problem's dtype, forward and backward.

Layers of one size are one network of cuDNN's, as its users have it. Where sizes differ, or dropout masks are given
(cuDNN draws its own), each layer is a network of its own, and NumPy multiplies by the masks between them. cuDNN gets no
padding (zeros stand there), and of its dx only what is no padding is taken. float32 is computed without TF32.
"""

import numpy as np

from numbarnn.bench.cases import sequences
from numbarnn.bench.cases.cases import PEERS_CELLS, layer_of, pack_states, renamed

LACKS = ("resets",)  # options of a case that cuDNN does not have


class Refused(RuntimeError):
    """cuDNN does not run a case; the message has its own words, or names the option that it does not have."""


def why_not():
    """Why cuDNN cannot be asked here, in words; None where it can."""
    from numbarnn.bench.peers import cudnn

    return cudnn.why_not()


def cudnn_results(problem, masks=None):
    """cuDNN's results by quantity, as `peers` describes them; y and the states alone where the case is forward only.

    Args:
        masks: what the outputs of all layers but the last are multiplied by: a list of (T, B, D*H_l), or None.

    Raises Refused where cuDNN lacks an option, or refuses what it was given, or fails.
    """
    from numbarnn.bench.peers.cudnn import CudnnError

    lacks = [name for name in LACKS if name in problem.case.uses]
    lacks += [] if problem.case.cell in PEERS_CELLS else [problem.case.cell]
    if lacks:
        raise Refused(f"it has no {', '.join(lacks)}")
    try:
        return run(problem, masks)
    except CudnnError as error:
        raise Refused(str(error)) from error


def run(problem, masks):
    """`cudnn_results` of a case whose options cuDNN has."""
    case, one_by_one = problem.case, masks is not None or not problem.case.equal_layers
    networks = [CudnnLayers(problem, own) for own in ([(k,) for k in range(case.L)] if one_by_one else [range(case.L)])]
    x, hy, cy = sequences.filled(problem.x, problem.padding), [], []
    for number, network in enumerate(networks):
        y, h, c = network.forward(x)
        hy += h
        cy += c
        x = sequences.filled(y if masks is None else masked(y, masks, number), problem.padding)
    results = {"y": y, "hy": hy} | ({"cy": cy} if case.cell == "lstm" else {})
    if case.forward_only:
        return results
    dy, dhx, dcx = sequences.filled(problem.dy, problem.padding), [], []
    for number, network in reversed(list(enumerate(networks))):
        dx, dh, dc, parameters = network.backward(dy)
        dhx, dcx = dh + dhx, dc + dcx
        results |= parameters
        dx = sequences.filled(dx, problem.padding)
        dy = dx if masks is None or number == 0 else masked(dx, masks, number - 1)
    return results | {"dx": dx, "dhx": dhx} | ({"dcx": dcx} if case.cell == "lstm" else {})


def masked(array, masks, layer):
    """An array times the masks of a layer, if it has some, in the array's dtype."""
    return (array * np.asarray(masks[layer], array.dtype)) if layer < len(masks) else array


class CudnnLayers:
    """Consecutive layers of a problem, of one size, as one network of cuDNN's.

    Args:
        layers: their numbers.
        chosen: options of `cudnn.Options` that the problem leaves open, such as the algorithm.
    """

    def __init__(self, problem, layers, **chosen):
        from numbarnn.bench.peers import cudnn

        case = problem.case
        self.problem, self.layers = problem, layers
        sizes = case.layer_input_size(layers[0]), case.hidden[layers[0]], len(layers)
        names = ["bidirectional", "bias", "proj_size", "dtype"]
        names += ["cell_clip", "clip_propagate_nan"] if case.cell_clip else []
        names += ["input_mode"] if layers[0] == 0 else []
        self.rnn = cudnn.Rnn(case.cell, *sizes, **{name: getattr(case, name) for name in names}, **chosen)

    def forward(self, x):
        """y, and lists of hy and cy, of which one is empty where the cell has no c."""
        problem, case = self.problem, self.problem.case
        y, hy, cy, self.reserve = self.rnn.forward(
            x,
            self.states(problem.h0),
            self.states(problem.c0),
            self.weights(),
            lengths=problem.lengths,
            padding_value=case.padding_value,
            training=True,
        )
        return y, self.unpacked(hy), self.unpacked(cy)

    def backward(self, dy):
        """dx, lists of dhx and dcx, and the gradients of the parameters by the problem's names."""
        problem = self.problem
        dhy, dcy = self.states(problem.dhy), self.states(problem.dcy)
        dx, dhx, dcx = self.rnn.backward_data(self.reserve, dy, dhy, dcy)
        gradients = self.rnn.split(self.rnn.backward_weights(self.reserve))
        parameters = {name: gradients[own] for name, own in self.names().items()}
        return dx, self.unpacked(dhx), self.unpacked(dcx), parameters

    def prepare(self, train):
        """A `cudnn.Prepared` of a problem without lengths: forward and backward if `train`, else inference.

        As all sequences have T steps, packed ones are the same numbers in the same places, without the axis of time.
        """
        problem = self.problem
        x, dy, lengths = problem.x, problem.dy, None
        if self.rnn.options.layout == "seq_major_packed":
            x, dy, lengths = x.reshape(-1, x.shape[2]), dy.reshape(-1, dy.shape[2]), (len(x),) * x.shape[1]
        given = {"dy": dy, "dhy": self.states(problem.dhy), "dcy": self.states(problem.dcy)} if train else {}
        states = self.states(problem.h0), self.states(problem.c0)
        return self.rnn.prepare(x, *states, self.weights(), **given, lengths=lengths)

    def named_results(self, found):
        """What a `cudnn.Prepared` of all layers gives, by the quantities of `peers`."""
        axes = self.problem.x.shape[:2]
        results = {name: found[name].reshape(*axes, -1) for name in ("y", "dx") if name in found}
        results |= {name: self.unpacked(found[name]) for name in ("hy", "cy", "dhx", "dcx") if name in found}
        return results | (self.rnn.split(found["dw"]) if "dw" in found else {})

    def weights(self):
        """The parameters of these layers by the network's names."""
        return {own: self.problem.parameters[name] for name, own in self.names().items()}

    def names(self):
        """The problem's name -> the network's, of the parameters of these layers."""
        own = [name for name in self.problem.parameters if layer_of(name) in self.layers]
        return {name: renamed(name, -self.layers[0]) for name in own}

    def states(self, states):
        """Per-layer states of the problem as cuDNN takes those of these layers: (layers * D, B, H); None stays None."""
        return None if states is None else pack_states([states[k] for k in self.layers])

    def unpacked(self, states):
        """The reverse of `states`; an empty list for None."""
        if states is None:
            return []
        D = self.problem.case.D
        return [states[k * D : (k + 1) * D] for k in range(len(self.layers))]
