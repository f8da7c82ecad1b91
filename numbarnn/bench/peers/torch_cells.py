"""PyTorch's modules for one step on instances of `cases`, as they are and compiled: what torch.compile is good for.

torch.compile leaves nn.LSTM, nn.GRU and nn.RNN to eager PyTorch (a graph break; torch._dynamo.config.allow_rnn), and a
loop over time within the compiled function is unrolled: forward alone of an LSTM (25, 16, 512, 512, 1), by allow_rnn,
took 109 s to compile on two cores. So the step of all layers is compiled, as PyTorch's users do for their own cells,
and its compile time does not depend on the number of steps.
"""

import time

from numbarnn.bench.cases.cases import layer_of, renamed, unpack_states
from numbarnn.bench.peers.contender import Contender, LazyModule
from numbarnn.bench.peers.torch_peer import numpy_to_torch, torch_call, torch_synchronize, torch_to_numpy
from numbarnn.weights.network import infer
from numbarnn.weights.torch import write as state_dict_of

torch = LazyModule("torch")

NAME = "torch.compile"


def torch_cells(instance, device):
    """(PyTorch's modules for one step of each layer; a function of all of them: x (B, I), states -> y, states)."""
    modules, has_c = [torch_cell(instance, k, device) for k in range(instance.case.L)], instance.case.has_c

    def all_layers(x, before):
        after = []
        for module, one in zip(modules, before, strict=True):
            after.append(module(x, one))
            x = after[-1][0] if has_c else after[-1]
        return x, after

    return modules, all_layers


def torch_compiled(function, device):
    """A function (x, states) -> (y, states) as torch.compile makes it.

    On a GPU it is a CUDA graph, whose results are cloned, as the next call overwrites them.
    """
    forget_compiled()
    if not device.startswith("cuda"):
        return torch.compile(function)
    graph = torch.compile(function, mode="reduce-overhead")
    begin, clone = torch.compiler.cudagraph_mark_step_begin, torch.clone

    def run(x, before):
        begin()
        y, after = graph(x, before)
        return y.clone(), [tuple(map(clone, one)) if isinstance(one, tuple) else one.clone() for one in after]

    return run


def torch_cell(instance, layer, device):
    """PyTorch's module for one step of a layer."""
    case = instance.case
    kind = {"lstm": torch.nn.LSTMCell, "gru": torch.nn.GRUCell}.get(case.cell, torch.nn.RNNCell)
    options = {"nonlinearity": case.cell.removeprefix("rnn_")} if kind is torch.nn.RNNCell else {}
    options |= {"dtype": getattr(torch, case.dtype), "device": device}
    module = kind(case.layer_input_size(layer), case.hidden[layer], **options).eval()
    own = {renamed(name, -layer): array for name, array in instance.parameters.items() if layer_of(name) == layer}
    state = state_dict_of(infer(own, case.cell))
    module.load_state_dict({name.removesuffix("_l0"): numpy_to_torch(array) for name, array in state.items()})
    return module


def forget_compiled():
    """torch.compile compiles a function for a few shapes only, and goes back to eager PyTorch after those: not here."""
    torch._dynamo.reset()


def torch_compiled_contender(instance, train, device="cpu"):
    """At what `torch_contender` does. Its first call is made here: what that takes is its `compile_s`.

    Raises:
        ValueError: the case has what cells for one step have not. What torch.compile raises.
    """
    case = instance.case
    if case.bidirectional or case.lengths:
        raise ValueError("PyTorch's cells for one step go one way, over sequences of one length")
    modules, step = torch_cells(instance, device)
    forget_compiled()
    step = torch.compile(step)
    x, dy = numpy_to_torch(instance.x, device), numpy_to_torch(instance.dy, device)
    given = [[numpy_to_torch(part[0], device) for part in s] for s in (instance.h0, instance.c0) if s]
    initial = list(zip(*given, strict=True)) if case.has_c else given[0]
    leaves = [x, *(part for parts in given for part in parts)]
    for tensor in leaves:
        tensor.requires_grad_(train)
    parameters = {f"{name}_l{k}": p for k, module in enumerate(modules) for name, p in module.named_parameters()}

    def forward():
        state, ys = initial, []
        for x_t in x.unbind(0):
            y, state = step(x_t, state)
            ys.append(y)
        return torch.stack(ys), state

    def by_layer(names, states):
        parts = zip(*states, strict=True) if case.has_c else [states]
        found = {name: torch.stack(list(part)) for name, part in zip(names, parts, strict=False)}
        return {name: unpack_states(case, torch_to_numpy(value)) for name, value in found.items()}

    def results(returned):
        found = {"y": torch_to_numpy(returned[0])} | by_layer(("hy", "cy"), returned[1])
        if train:
            found |= {"dx": torch_to_numpy(x.grad)} | {name: torch_to_numpy(p.grad) for name, p in parameters.items()}
            grads = [tuple(one.grad for one in layer) if case.has_c else layer.grad for layer in initial]
            found |= by_layer(("dhx", "dcx"), grads)
        return found

    call = torch_call(forward, [*leaves, *parameters.values()], dy if train else None)
    synchronize = torch_synchronize(device)
    begin = time.perf_counter()
    call()
    synchronize()
    seconds = time.perf_counter() - begin
    return Contender(NAME, call, results, synchronize, note="its step, in a loop over time", compile_s=seconds)
