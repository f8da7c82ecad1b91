"""Run PyTorch on instances of `cases`, for results on the CPU, and to time its modules.

A missing bias is computed as zeros, and a skip input with the identity for W. Cases with options of LACKS, dropout,
layers of several sizes or sequences of length zero have no results.
"""

import warnings
from contextlib import contextmanager

import numpy as np

from numbarnn.bench.cases import layer_of, pack_states, renamed
from numbarnn.bench.peers.contender import Contender, installed, torch
from numbarnn.common import precision
from numbarnn.weights.network import infer
from numbarnn.weights.torch import write as state_dict_of

LACKS = ("cell_clip", "resets")  # options of a case that PyTorch does not have
TORCH = "torch"  # the contender's name


@contextmanager
def torch_threads(threads):
    """Let PyTorch, if it is installed, use this many CPU threads in a `with` block."""
    if not installed("torch"):
        return (yield)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def torch_tf32(allowed):
    """Let PyTorch round float32 operands on a GPU to TF32 in a `with` block if `allowed` is True."""
    switches = torch.backends.cudnn, torch.backends.cuda.matmul
    before = [switch.allow_tf32 for switch in switches]
    for switch in switches:
        switch.allow_tf32 = allowed is True
    try:
        yield
    finally:
        for switch, allow in zip(switches, before, strict=True):
            switch.allow_tf32 = allow


def torch_module(instance, layers, device="cpu", one_step=False):
    """Return the torch.nn module that computes some layers (a range) of an instance.

    one_step: return nn.LSTMCell, nn.GRUCell or nn.RNNCell, of one layer."""
    case, first = instance.case, layers[0]
    kind = {"lstm": "LSTM", "gru": "GRU"}.get(case.cell, "RNN")
    options = {"nonlinearity": case.cell.removeprefix("rnn_")} if kind == "RNN" else {}
    options |= {"dtype": getattr(torch, case.dtype), "device": device}
    if not one_step:
        options |= {"proj_size": case.proj_size} if case.proj_size else {}
        options |= {"num_layers": len(layers), "bias": bool(case.bias), "bidirectional": case.bidirectional}
    module = getattr(torch.nn, kind + "Cell" * one_step)(case.layer_input_size(first), case.hidden[first], **options)
    arrays = {renamed(name, -first): array for name, array in instance.parameters.items() if layer_of(name) in layers}
    suffix = "_l0" if one_step else ""
    state = {name.removesuffix(suffix): array for name, array in state_dict_of(infer(arrays, case.cell)).items()}
    module.load_state_dict({name: numpy_to_torch(array) for name, array in state.items()})
    return module


def torch_results(instance, masks=None):
    """Return PyTorch's results, forward and backward, on the CPU; None if it does not compute the case."""
    case = instance.case
    empty = instance.lengths is not None and not instance.lengths.all()
    if masks or empty or not case.equal_layers or any(name in case.uses for name in LACKS):
        return None
    contender = torch_contender(instance, True)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "LSTM with projections is not supported with oneDNN")  # only slower
        return contender.results(contender.call())


def torch_to_numpy(value):
    if isinstance(value, list):
        return [torch_to_numpy(part) for part in value]
    value = value.detach().cpu()
    if value.dtype != torch.bfloat16:
        return value.numpy()
    return value.contiguous().view(torch.int16).numpy().view(precision.numpy_dtype("bfloat16"))


def numpy_to_torch(array, device="cpu"):
    """Return an array as a tensor, bfloat16 by its bits."""
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16).to(device)
    return torch.from_numpy(array).to(device)


def torch_contender(instance, train, device="cpu"):
    """Return the contender of nn.LSTM, nn.GRU or nn.RNN: inference, or forward and backward."""
    case, module = instance.case, torch_module(instance, range(instance.case.L), device).train(train)
    module.flatten_parameters()  # cuDNN copies other parameters in every call
    parameters = {name: p for name, p in module.named_parameters() if name in instance.parameters}
    x = numpy_to_torch(instance.x, device).requires_grad_(train)
    states = [numpy_to_torch(part, device).requires_grad_(train) for part in initial_states(instance)]
    initial, leaves = tuple(states) if case.has_c else states[0], [x, *parameters.values(), *states]
    gradients = instance.dy, *map(pack_states, (instance.dhy, instance.dcy))
    gradients = [numpy_to_torch(array, device) for array in gradients if array is not None]

    def forward():
        if instance.lengths is None:
            y, final = module(x, initial)
        else:
            rnn, lengths = torch.nn.utils.rnn, torch.from_numpy(instance.lengths)
            y, final = module(rnn.pack_padded_sequence(x, lengths, enforce_sorted=False), initial)
            y, _ = rnn.pad_packed_sequence(y, padding_value=case.padding_value, total_length=len(x))
        return y, final if case.has_c else (final,)

    def backward(y, finals):
        outputs = [y] * (instance.dy is not None) + [*finals] * (instance.dhy is not None)
        torch.autograd.backward(outputs, gradients)

    def results(returned):
        y, finals = returned
        quantities = {"y": y} | named_states(("hy", "cy"), finals)
        if train:
            quantities |= {"dx": x.grad} | {name: p.grad for name, p in parameters.items()}
            quantities |= named_states(("dhx", "dcx"), [part.grad for part in states])
        return {quantity: torch_to_numpy(value) for quantity, value in quantities.items()}

    def named_states(names, parts):
        """Return quantity -> a list of (D, B, H) per layer."""
        return {name: list(part.split(case.D)) for name, part in zip(names, parts, strict=False)}

    note = "call by call, as its users call it" if device.startswith("cuda") else None
    call = torch_call(forward, leaves, backward if train else None)
    return Contender(TORCH, call, results, torch_synchronize(device), note=note)


def initial_states(instance):
    """Return h, and c of an LSTM, each (L*D, B, H), zeros if the instance has none."""
    case, sizes = instance.case, [(instance.h0, instance.case.outputs)]
    sizes += [(instance.c0, case.hidden)] if case.cell == "lstm" else []
    dtype = precision.numpy_dtype(case.dtype)
    return [pack_states(states or [np.zeros((case.D, case.B, width), dtype) for width in widths])
            for states, widths in sizes]  # fmt: skip


def torch_call(forward, leaves, backward=None):
    """Return a contender's call: forward() -> (y, states) without gradients; or that and backward(y, states)."""

    def forward_and_backward():
        for leaf in leaves:
            leaf.grad = None
        y, final = forward()
        backward(y, final)
        return y, final

    return forward_and_backward if backward else torch.no_grad()(forward)


def torch_synchronize(device):
    return torch.cuda.synchronize if device.startswith("cuda") else lambda: None
