"""PyTorch on instances of `cases`: its results on the CPU, and its modules as their users call them.

Options that PyTorch's layers lack are emulated if that needs no rounding: a missing bias is zero, and a skip input has
the identity for W. `LACKS` has the others.
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
    """Return a context in which PyTorch, if it is installed, uses that many CPU threads."""
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
    """Return a context in which PyTorch may round float32 operands on a GPU to TF32 (True), or may not."""
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
    """Return the torch.nn module that computes layers `layers` (a range, of one hidden size) of an instance.
    one_step: nn.LSTMCell, nn.GRUCell or nn.RNNCell, of one layer."""
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
    """Return PyTorch's results, forward and backward, on the CPU; None if it lacks an option.
    Each layer is a separate module, so that layers may differ in size. Outputs of all layers but the last are
    multiplied by masks, a list of (T, B, D*H_l), if there are any."""
    if any(name in instance.case.uses for name in LACKS):
        return None
    contender = torch_contender(instance, True, layers=[(k,) for k in range(instance.case.L)], masks=masks or ())
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "LSTM with projections is not supported with oneDNN")  # only slower
        return contender.results(contender.call())


def torch_to_numpy(value):
    """Return a tensor, or a list of tensors, as NumPy arrays."""
    if isinstance(value, list):
        return [torch_to_numpy(part) for part in value]
    value = value.detach().cpu()
    if value.dtype != torch.bfloat16:
        return value.numpy()
    return value.contiguous().view(torch.int16).numpy().view(precision.numpy_dtype("bfloat16"))


def numpy_to_torch(array, device="cpu"):
    """Return an array as a tensor; PyTorch does not know NumPy's bfloat16, but its bits."""
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16).to(device)
    return torch.from_numpy(array).to(device)


def torch_contender(instance, train, device="cpu", layers=None, masks=()):
    """Return nn.LSTM, nn.GRU or nn.RNN as its users call it: forward without gradients, or forward and backward.
    layers: those of each module, by default all in one. masks: as of `torch_results`."""
    case, modules, parameters, states = instance.case, [], {}, []
    for group in layers or [range(case.L)]:
        module = torch_module(instance, group, device)
        module.flatten_parameters()  # packed once: parameters are views of one buffer, as cuDNN has them
        modules.append(module.train(train))
        named = {renamed(name, group[0]): p for name, p in module.named_parameters()}
        parameters |= {name: p for name, p in named.items() if name in instance.parameters}
        states.append([numpy_to_torch(part, device).requires_grad_(train) for part in initial_states(instance, group)])
    initial = [tuple(state) if case.has_c else state[0] for state in states]
    x, factors = numpy_to_torch(instance.x, device), [numpy_to_torch(np.asarray(m, dtype=case.dtype)) for m in masks]
    leaves = [x.requires_grad_(train), *parameters.values(), *(part for state in states for part in state)]
    gradients = [instance.dy] if instance.dy is not None else [], instance.dhy or [], instance.dcy or []
    dy, dhy, dcy = ([numpy_to_torch(array, device) for array in arrays] for arrays in gradients)

    def forward():
        y, finals = x, []
        for k, (module, state) in enumerate(zip(modules, initial, strict=True)):
            y, final = run_module(module, y, state, instance)
            finals.append(final)
            y = y * factors[k] if k < len(factors) else y
        return y, finals

    def by_layer(names, modules):
        """Return quantity -> a list of (D, B, H) per layer, from a list of states per module."""
        return {name: [piece for part in same for piece in part.split(case.D)]
                for name, same in zip(names, zip(*modules, strict=True), strict=False)}  # fmt: skip

    def final_states(finals):
        return by_layer(("hy", "cy"), finals if case.has_c else [(one,) for one in finals])

    def backward(y, finals):
        named, pairs = final_states(finals) if dhy or dcy else {}, list(zip([y], dy, strict=False))
        pairs += [*zip(named.get("hy", ()), dhy, strict=False), *zip(named.get("cy", ()), dcy, strict=False)]
        torch.autograd.backward(*map(list, zip(*pairs, strict=True)))

    def results(returned):
        y, finals = returned
        quantities = {"y": y} | final_states(finals)
        if train:
            quantities |= {"dx": x.grad} | {name: p.grad for name, p in parameters.items()}
            quantities |= by_layer(("dhx", "dcx"), [[part.grad for part in state] for state in states])
        return {quantity: torch_to_numpy(value) for quantity, value in quantities.items()}

    note = "call by call, as its users call it" if device.startswith("cuda") else None
    call = torch_call(forward, leaves, backward if train else None)
    return Contender(TORCH, call, results, torch_synchronize(device), note=note)


def initial_states(instance, layers):
    """Return h of some layers, and c of an LSTM: (layers * D, B, H), zeros if there are none."""
    case, sizes = instance.case, [(instance.h0, instance.case.outputs)]
    sizes += [(instance.c0, case.hidden)] if case.cell == "lstm" else []
    dtype = precision.numpy_dtype(case.dtype)
    return [pack_states([states[k] if states else np.zeros((case.D, case.B, widths[k]), dtype) for k in layers])
            for states, widths in sizes]  # fmt: skip


def run_module(module, x, state, instance):
    """Return y and the final states of one module: x (T, B, I), with the instance's lengths if it has any.
    PyTorch packs no sequence of length 0: such ones are left out, so that their final state is the initial one."""
    if instance.lengths is None:
        return module(x, state)
    rnn, value, lengths = torch.nn.utils.rnn, instance.case.padding_value, torch.from_numpy(instance.lengths)
    kept, parts = torch.nonzero(lengths)[:, 0], state if isinstance(state, tuple) else (state,)
    chosen = parts if lengths.min() else tuple(part[:, kept] for part in parts)
    packed = rnn.pack_padded_sequence(x if lengths.min() else x[:, kept], lengths[kept], enforce_sorted=False)
    y, final = module(packed, chosen if isinstance(state, tuple) else chosen[0])
    y, _ = rnn.pad_packed_sequence(y, padding_value=value, total_length=len(x))
    if lengths.min():
        return y, final
    padding = torch.full((*x.shape[:2], y.shape[2]), value, dtype=y.dtype)
    pairs = zip(parts, final if isinstance(state, tuple) else (final,), strict=True)
    finals = tuple(before.index_copy(1, kept, after) for before, after in pairs)
    return padding.index_copy(1, kept, y), finals if isinstance(state, tuple) else finals[0]


def torch_call(forward, leaves, backward=None):
    """Return a contender's call: forward() -> (y, states), without gradients; or also backward(y, states)."""

    def forward_and_backward():
        for leaf in leaves:
            leaf.grad = None
        y, final = forward()
        backward(y, final)
        return y, final

    return forward_and_backward if backward else torch.no_grad()(forward)


def torch_synchronize(device):
    """Return a function that waits for PyTorch's work on a device."""
    return torch.cuda.synchronize if device.startswith("cuda") else lambda: None
