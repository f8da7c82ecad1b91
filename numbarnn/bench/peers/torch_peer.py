"""PyTorch on instances of `cases`: its results on the CPU, and its modules as their users call them.

What PyTorch's layers lack and can be given without a rounding is given: a bias that an instance does not have is zero,
and a skip input has the identity for W. What is left is `LACKS`.

torch.compile leaves nn.LSTM, nn.GRU and nn.RNN to eager PyTorch (a graph break; torch._dynamo.config.allow_rnn), and a
loop over time within the compiled function is unrolled: forward alone of an LSTM (25, 16, 512, 512, 1), by allow_rnn,
took 109 s to compile on two cores. So the step of all layers is compiled, as PyTorch's users do for their own cells,
and its compile time does not depend on the number of steps.
"""

import time
import warnings
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

import numpy as np

from numbarnn.bench.cases import layer_of, pack_states, renamed
from numbarnn.bench.peers.contender import Contender, installed, torch
from numbarnn.common import precision
from numbarnn.weights.network import infer
from numbarnn.weights.torch import write as state_dict_of

LACKS = ("cell_clip", "resets")  # options of a case that PyTorch does not have
TORCH, COMPILED = "torch", "torch.compile"  # names of contenders


@contextmanager
def torch_threads(threads):
    """A context in which PyTorch, where it is installed, uses that many CPU threads."""
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
    """A context in which PyTorch may round float32 operands on a GPU to TF32 (True), or may not."""
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

    one_step: nn.LSTMCell, nn.GRUCell or nn.RNNCell, of one layer.
    """
    case, first = instance.case, layers[0]
    kind = {"lstm": "LSTM", "gru": "GRU"}.get(case.cell, "RNN")
    options = {"nonlinearity": case.cell.removeprefix("rnn_")} if kind == "RNN" else {}
    options |= {"dtype": getattr(torch, case.dtype), "device": device}
    if not one_step:
        options |= {"proj_size": case.proj_size} if case.proj_size else {}
        options |= {"num_layers": len(layers), "bias": bool(case.bias), "bidirectional": case.bidirectional}
    module = getattr(torch.nn, kind + "Cell" * one_step)(case.layer_input_size(first), case.hidden[first], **options)
    own = {renamed(name, -first): array for name, array in instance.parameters.items() if layer_of(name) in layers}
    suffix = "_l0" if one_step else ""
    state = {name.removesuffix(suffix): array for name, array in state_dict_of(infer(own, case.cell)).items()}
    module.load_state_dict({name: numpy_to_torch(array) for name, array in state.items()})
    return module


def torch_results(instance, masks=None):
    """Return PyTorch's results, forward and backward, on the CPU; None where it lacks an option.

    Each layer is a module of its own, so that layers may differ in size, and outputs of all layers but the last are
    multiplied by masks, a list of (T, B, D*H_l), where they are given.
    """
    if any(name in instance.case.uses for name in LACKS):
        return None
    contender = torch_contender(replace(instance, case=replace(instance.case, chain=True)), True, masks=masks)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "LSTM with projections is not supported with oneDNN")  # only slower
        return contender.results(contender.call())


def torch_to_numpy(value):
    """A tensor, or a list of tensors, as NumPy arrays."""
    if isinstance(value, list):
        return [torch_to_numpy(part) for part in value]
    value = value.detach().cpu()
    if value.dtype != torch.bfloat16:
        return value.numpy()
    return value.contiguous().view(torch.int16).numpy().view(precision.numpy_dtype("bfloat16"))


def numpy_to_torch(array, device="cpu"):
    """An array as a tensor; PyTorch does not know NumPy's bfloat16, but its bits."""
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16).to(device)
    return torch.from_numpy(array).to(device)


def torch_contender(instance, train, device="cpu", masks=None):
    """nn.LSTM, nn.GRU or nn.RNN as its users call it: forward without gradients, or forward and backward.

    In a chain there is a module for each layer; masks: as of `torch_results`, of a chain.
    """
    case, modules, parameters, states = instance.case, [], {}, []
    for first in range(case.L) if case.chain else [0]:
        layers = range(first, first + 1 if case.chain else case.L)
        module = torch_module(instance, layers, device)
        module.flatten_parameters()  # packed once: parameters are pieces of one buffer, as cuDNN has them
        modules.append(module.train(train))
        named = {renamed(name, first): p for name, p in module.named_parameters()}
        parameters |= {name: p for name, p in named.items() if name in instance.parameters}
        states.append([numpy_to_torch(part, device) for part in given_states(instance, layers)])
    factors = [numpy_to_torch(np.asarray(mask, dtype=case.dtype)) for mask in masks or ()]

    def forward(y, states):
        finals = []
        for k, (module, state) in enumerate(zip(modules, states, strict=True)):
            y, final = run_module(module, y, state, instance)
            finals.append(final)
            y = y * factors[k] if k < len(factors) else y
        return y, finals

    made = contender_of(TORCH, forward, instance, states, parameters, train, device)
    return replace(made, note="call by call, as its users call it" if device.startswith("cuda") else None)


def given_states(instance, layers):
    """h of some layers, and c of an LSTM: (layers * D, B, H), zeros where none are given."""
    case, sizes = instance.case, [(instance.h0, instance.case.outputs)]
    sizes += [(instance.c0, case.hidden)] if case.cell == "lstm" else []
    zeros = partial(np.zeros, dtype=precision.numpy_dtype(case.dtype))
    return [pack_states([states[k] if states else zeros((case.D, case.B, widths[k])) for k in layers])
            for states, widths in sizes]  # fmt: skip


def run_module(module, x, state, instance):
    """Return y and the final states of one module: x (T, B, I), with the instance's lengths where it has them.

    PyTorch packs no sequence of length 0: such ones are left out, so that their final state is the initial one.
    """
    if instance.lengths is None:
        return module(x, state)
    rnn, value, lengths = torch.nn.utils.rnn, instance.case.padding_value, torch.from_numpy(instance.lengths)
    kept, parts = slice(None), state if isinstance(state, tuple) else (state,)
    if not lengths.min():
        kept = torch.nonzero(lengths)[:, 0]
    chosen = tuple(part[:, kept] for part in parts)
    packed = rnn.pack_padded_sequence(x[:, kept], lengths[kept], enforce_sorted=False)
    y, final = module(packed, chosen if isinstance(state, tuple) else chosen[0])
    y, _ = rnn.pad_packed_sequence(y, padding_value=value, total_length=len(x))
    if isinstance(kept, slice):
        return y, final
    padding = torch.full((*x.shape[:2], y.shape[2]), value, dtype=y.dtype)
    pairs = zip(parts, final if isinstance(state, tuple) else (final,), strict=True)
    finals = tuple(before.index_copy(1, kept, after) for before, after in pairs)
    return padding.index_copy(1, kept, y), finals if isinstance(state, tuple) else finals[0]


def contender_of(name, forward, instance, states, parameters, train, device):
    """Return a contender of PyTorch's: forward without gradients, or forward and backward.

    forward: (x, states) -> y and final states, a list of (h, c) or h: one for each module. states: of each module its
    initial h or [h, c]: (layers * D, B, H), or (B, H) where it takes one step. parameters: by the instance's names.
    """
    case, x = instance.case, numpy_to_torch(instance.x, device)
    leaves = [x, *(part for state in states for part in state)]
    for tensor in leaves:
        tensor.requires_grad_(train)
    initial = [tuple(state) if case.has_c else state[0] for state in states]
    dy, dhy, dcy = ([numpy_to_torch(array, device) for array in arrays]
                    for arrays in ([instance.dy] if instance.dy is not None else [], instance.dhy or [],
                                   instance.dcy or []))  # fmt: skip

    def by_layer(names, modules):
        """Quantity -> a list of (D, B, H) per layer, of a list of states per module."""
        parts = [[part if part.dim() == 3 else part[None] for part in same] for same in zip(*modules, strict=True)]
        return {name: [piece for part in same for piece in part.split(case.D)]
                for name, same in zip(names, parts, strict=False)}  # fmt: skip

    def final_states(finals):
        return by_layer(("hy", "cy"), finals if case.has_c else [(one,) for one in finals])

    def backward(y, finals):
        found, pairs = final_states(finals) if dhy or dcy else {}, list(zip([y], dy, strict=False))
        pairs += [*zip(found.get("hy", ()), dhy, strict=False), *zip(found.get("cy", ()), dcy, strict=False)]
        torch.autograd.backward(*map(list, zip(*pairs, strict=True)))

    def results(returned):
        y, finals = returned
        found = {"y": y} | final_states(finals)
        if train:
            found |= {"dx": x.grad} | {name: p.grad for name, p in parameters.items()}
            found |= by_layer(("dhx", "dcx"), [[part.grad for part in state] for state in states])
        return {quantity: torch_to_numpy(value) for quantity, value in found.items()}

    leaves += parameters.values()
    call = torch_call(lambda: forward(x, initial), leaves, backward if train else None)
    return Contender(name, call, results, torch_synchronize(device))


def torch_call(forward, leaves, backward=None):
    """Return what a contender calls: forward() -> (y, states), without gradients; or also backward(y, states)."""

    def forward_and_backward():
        for leaf in leaves:
            leaf.grad = None
        y, final = forward()
        backward(y, final)
        return y, final

    return forward_and_backward if backward else torch.no_grad()(forward)


def torch_synchronize(device):
    """What waits for PyTorch's work on a device."""
    return torch.cuda.synchronize if device.startswith("cuda") else lambda: None


# ------------------------------------------------------------------------------------------------------------- compiled
def torch_cells(instance, device):
    """Return (PyTorch's modules for one step of each layer; their function: x (B, I), states -> y, states)."""
    has_c = instance.case.has_c
    modules = [torch_module(instance, [layer], device, one_step=True).eval() for layer in range(instance.case.L)]

    def all_layers(x, before):
        after = []
        for module, one in zip(modules, before, strict=True):
            after.append(module(x, one))
            x = after[-1][0] if has_c else after[-1]
        return x, after

    return modules, all_layers


def torch_compiled(function, device):
    """Return a function (x, states) -> (y, states) as torch.compile makes it.

    On a GPU it is a CUDA graph, whose results are cloned, as the next call overwrites them.
    """
    forget_compiled()
    if not device.startswith("cuda"):
        return torch.compile(function)
    graph = torch.compile(function, mode="reduce-overhead")

    def run(x, before):
        torch.compiler.cudagraph_mark_step_begin()
        y, after = graph(x, before)
        return y.clone(), [tuple(map(torch.clone, one)) if isinstance(one, tuple) else one.clone() for one in after]

    return run


def forget_compiled():
    """torch.compile compiles a function for a few shapes only, and goes back to eager PyTorch after those: not here."""
    torch._dynamo.reset()


def torch_compiled_contender(instance, train, device="cpu"):
    """Return a contender at what `torch_contender` does; its first call is made here, and takes `compile_s`."""
    case = instance.case
    if case.bidirectional or case.lengths:
        raise ValueError("PyTorch's cells for one step go one way, over sequences of one length")
    modules, step = torch_cells(instance, device)
    forget_compiled()
    step = torch.compile(step)
    given = [states for states in (instance.h0, instance.c0) if states]
    initial = [[numpy_to_torch(states[k][0], device) for states in given] for k in range(case.L)]
    parameters = {f"{name}_l{k}": p for k, module in enumerate(modules) for name, p in module.named_parameters()}

    def forward(x, states):
        ys = []
        for x_t in x.unbind(0):
            y, states = step(x_t, states)
            ys.append(y)
        return torch.stack(ys), states

    made, begin = contender_of(COMPILED, forward, instance, initial, parameters, train, device), time.perf_counter()
    made.call()
    made.synchronize()
    return replace(made, note="its step, in a loop over time", compile_s=time.perf_counter() - begin)
