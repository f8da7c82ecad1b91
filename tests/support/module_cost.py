"""What a module of `numbarnn.torch` costs over numbarnn's own calls, and what of it no Python code can save.

    python tests/support/module_cost.py [ROUNDS]

For each size it takes in turns, and prints the median of, in microseconds: numbarnn's own call, the module's call, an
`autograd.Function` that computes nothing, and PyTorch's own product of two tensors of one number. The empty function
has the module's tensors: x, h, c and four parameters in, y, h and c out, x and the parameters saved, and gradients that
are views of one flat buffer. So it is what PyTorch takes for any such function written in Python. Most of that is its
`backward()` itself, as the product shows.
"""

import statistics
import sys
import time

import torch

import numbarnn as nr
import numbarnn.torch as nrt

SIZES = (1, 1, 64, 64), (20, 1, 64, 64), (20, 4, 64, 64)  # T, B, I, H


class Empty(torch.autograd.Function):
    """y, h, c as they are given, with the gradients of the parameters as they are given."""

    @staticmethod
    def forward(ctx, results, gradients, x, h, c, *weights):
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x, *weights)
        ctx.gradients = gradients
        return tuple([one.detach() for one in results])

    @staticmethod
    def backward(ctx, dy, dh, dc):
        _ = ctx.saved_tensors
        flat, places = ctx.gradients
        return None, None, None, None, None, *[flat.as_strided(*place) for place in places]


_empty = super(torch.autograd.Function, Empty).apply  # as the module's function is called


def calls_of(steps, batch, inputs, hidden):
    """Name -> (inference, training) of the three, functions without arguments, for an LSTM of that size."""
    module = nrt.LSTM(inputs, hidden)
    layer = nr.convert.from_torch(module, device="cpu")
    weights = list(module.parameters())
    x, dy = torch.randn(steps, batch, inputs), torch.ones(steps, batch, hidden)
    state = torch.randn(1, batch, hidden), torch.randn(1, batch, hidden)
    arrays = x.numpy(), tuple(one.numpy() for one in state), dy.numpy()
    results = tuple(one.clone() for one in (dy, *state))
    gradients = torch.zeros(layer.weights.size), [(one.shape, one.stride(), one.storage_offset()) for one in weights]

    def own():
        _, _, tape = layer.forward(*arrays[:2])
        layer.backward(tape, arrays[2])

    def trained(call):
        def train():
            call()[0].backward(dy)
            for one in weights:
                one.grad = None

        return train

    def without(call):
        def infer():
            with torch.no_grad():
                return call()

        return infer

    def of_module():
        return module(x, state)

    def empty():
        return _empty(results, gradients, x, *state, *weights)

    one, scale = torch.ones(1), torch.ones(1, requires_grad=True)

    def product():
        (one * scale).backward()
        scale.grad = None

    return {
        "numbarnn": (lambda: layer(*arrays[:2]), own),
        "module": (without(of_module), trained(of_module)),
        "empty": (without(empty), trained(empty)),
        "product": (without(lambda: one * scale), product),
    }


def medians(calls, rounds):
    """The median time of each of the calls in microseconds, taken in turns."""
    times = [[] for _ in calls]
    for number in range(-20, rounds):
        for call, own in zip(calls, times, strict=True):
            begin = time.perf_counter()
            call()
            if number >= 0:
                own.append(time.perf_counter() - begin)
    return [statistics.median(own) * 1e6 for own in times]


def main(rounds=1500):
    torch.set_num_threads(2)
    print("T, B, I, H         call       numbarnn   module   module - numbarnn   empty function   product")
    for size in SIZES:
        calls = calls_of(*size)
        for kind, name in enumerate(("inference", "training")):
            own, module, empty, product = medians([one[kind] for one in calls.values()], rounds)
            print(f"{size!s:18} {name:10} {own:8.1f} {module:8.1f} {module - own:19.1f} {empty:16.1f} {product:9.1f}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
