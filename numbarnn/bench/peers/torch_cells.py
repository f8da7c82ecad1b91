"""PyTorch's modules for one step on instances of `cases`, as they are and compiled: what torch.compile is good for.

torch.compile leaves nn.LSTM, nn.GRU and nn.RNN to eager PyTorch (a graph break; torch._dynamo.config.allow_rnn), and a
loop over time within the compiled function is unrolled: forward alone of an LSTM (25, 16, 512, 512, 1), by allow_rnn,
took 109 s to compile on two cores. So the step of all layers is compiled, as PyTorch's users do for their own cells,
and its compile time does not depend on the number of steps.
"""

import time
from dataclasses import replace

from numbarnn.bench.peers.contender import torch
from numbarnn.bench.peers.torch_peer import contender_of, numpy_to_torch, torch_module

NAME = "torch.compile"


def torch_cells(instance, device):
    """(PyTorch's modules for one step of each layer; a function of all of them: x (B, I), states -> y, states)."""
    layers, has_c = instance.case.L, instance.case.has_c
    modules = [torch_module(instance, [layer], device, one_step=True).eval() for layer in range(layers)]

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


def forget_compiled():
    """torch.compile compiles a function for a few shapes only, and goes back to eager PyTorch after those: not here."""
    torch._dynamo.reset()


def torch_compiled_contender(instance, train, device="cpu"):
    """At what `torch_contender` does. Its first call is made here: what that takes is its `compile_s`."""
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

    made, begin = contender_of(NAME, forward, instance, initial, parameters, train, device), time.perf_counter()
    made.call()
    made.synchronize()
    return replace(made, note="its step, in a loop over time", compile_s=time.perf_counter() - begin)
