"""Run one call of a network on PyTorch's tensors, with gradients.

modules, cells    check arguments as torch.nn does
computation       a network for all layers, or one per layer; remembers the last call
calls             autocast, seeds; an eager call is the autograd function `Recurrence`
operators         calls that are compiled, exported, traced or transformed (with `second_order`) are operators
core, arrays      tensors become the engine's arrays, and its results tensors
"""

import warnings
from functools import cache, partial

import torch
from torch.autograd import forward_ad

from numbarnn.layers.planned import NO_KEY
from numbarnn.layers.private import split_steps
from numbarnn.programs.backward import Need
from numbarnn.programs.states import with_each
from numbarnn.torch import core, second_order
from numbarnn.torch.arrays import gathered, gradients_of, tensor_of
from numbarnn.torch.operators import autocast_dtype

PLAIN = {torch.Tensor, torch.nn.Parameter}
MAX_SEED = 2**62


def _ignore_warnings_of_traces():  # about sizes that are compared here: no graph depends on them
    warnings.filterwarnings("ignore", category=torch.jit.TracerWarning, module=r"numbarnn\.torch")


_ignore_warnings_of_traces()


def call(network, settings, x, h, private, weights):
    """Return (y, the state, with `output_states` the cell states of every step) of one call of a `Network`.

    Args:
        settings: a `core.CallSettings`. x: (T, B, I).
        h, private: h (L*D, B, P), and a tuple of the other cell states, each (L*D, B, H). None is zero.
        weights: a list of the parameters in the order of `network.parts`, or of one flat tensor. Parameters that are
            views of one flat buffer, at their parts' offsets, are not copied.
    """
    x, hx, private, weights = _autocast(x, h, private, weights)
    cx = None if private is None else private[0] if len(private) == 1 else torch.cat(list(private), dim=2)
    if torch.compiler.is_compiling() and _is_differentiated_inside():
        torch._dynamo.graph_break("numbarnn leaves derivatives by torch.func within a compiled function to eager calls")
    if settings.training and network.draws:
        settings = settings._replace(seed=torch.randint(MAX_SEED, (1,)))
    keep = _backward_may_follow(x, hx, cx, weights)
    if goes_by_operators(x, weights) or is_in_forward_mode():
        y, hy, cy, every = _by_operators(network, settings, x, hx, cx, weights, keep)
    else:
        core.check_tensors(network, settings, x, hx, cx, weights)
        y, hy, cy, every = engine_call(core.prepare(network, settings, x, hx, weights, keep), keep, x, hx, cx, weights)
    count = network.private
    state = hy, *(cy.tensor_split(count, dim=2) if count > 1 else [cy] * count)
    if settings.output_states:
        return y, state, split_steps(every, count, network.stack.directions)
    return y, state


def _autocast(x, h, private, weights):
    """Return the arguments in the dtype that autocast computes with, if it is on."""
    kind = "cuda" if x.is_cuda else "cpu"
    if x.is_meta or not torch.is_autocast_enabled(kind):
        return x, h, private, weights
    dtype = autocast_dtype(kind)

    def cast(tensor):
        return tensor if tensor.dtype in (dtype, torch.float64) else tensor.to(dtype)

    return with_each((x, h, private, weights), cast)


def _by_operators(network, settings, x, hx, cx, weights, keep):
    """Return y, hy, cy and all cell states by `operators.rnn_forward`."""
    if torch.onnx.is_in_onnx_export():
        raise NotImplementedError(
            "torch.onnx.export has no operator for numbarnn's modules: go back to torch.nn's LSTM, GRU and RNN with "
            "numbarnn.torch.restore(model), or make a module with schedule='loop' and load this one's state dict"
        )
    lengths, resets = (None if one is None else torch.as_tensor(one) for one in (settings.lengths, settings.resets))
    options = lengths, resets, settings.seed, network.key, float(settings.padding_value), settings.output_states
    transformed = torch._C._are_functorch_transforms_active() or is_in_forward_mode()
    if keep and not torch.compiler.is_compiling() and transformed:
        return second_order.TransformedForward.apply(*options, x, hx, cx, gathered(network, weights))[:4]
    return torch.ops.numbarnn.rnn_forward(x, hx, cx, list(weights), *options, keep)[:4]


# ------------------------------------------------------------------------------------------------ what PyTorch is doing
def goes_by_operators(x, weights):
    """Return whether a compiler, a transformation or another kind of tensor must see the call, not the engine."""
    if torch.compiler.is_compiling() or type(x) not in PLAIN or type(weights[0]) not in PLAIN or x.is_meta:
        return True
    if torch._C._get_tracing_state() is not None:
        return True
    return torch._C._are_functorch_transforms_active() or torch._C._len_torch_dispatch_stack() > 0


def is_in_forward_mode():
    """Return whether tensors may have tangents, which an engine's call would lose."""
    return not torch.compiler.is_compiling() and forward_ad._current_level >= 0


def requires_grad(x, hx, cx, weights):
    """Return whether any of these tensors requires a gradient."""
    states = (hx is not None and hx.requires_grad) or (cx is not None and cx.requires_grad)
    gradients = [weight.requires_grad for weight in weights]  # a list: torch.compile reads it
    return x.requires_grad or states or any(gradients)


def _backward_may_follow(x, hx, cx, weights):
    """Return whether the call must keep what backward reads.

    A program of `torch.jit.trace` may run with gradients or without: it keeps this if a tensor requires a gradient."""
    if is_in_forward_mode():
        return True
    if not torch.is_grad_enabled() and not torch.jit.is_tracing():
        return False
    if not torch.compiler.is_compiling() and torch._C._are_functorch_transforms_active():
        x, hx, cx, *weights = map(_inmost, (x, hx, cx, *weights))
    return requires_grad(x, hx, cx, weights)


def _inmost(tensor):
    """Return a tensor without the wrappers of transformations, down to the first wrapper with a gradient."""
    while tensor is not None and not tensor.requires_grad and torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        tensor = torch._C._functorch.get_unwrapped(tensor)
    return tensor


def _is_differentiated_inside():
    """Return whether a compiler reads the call within `torch.func`'s derivatives, which operators do not support."""
    kinds = torch._C._functorch.TransformType
    stack = torch._C._functorch.get_interpreter_stack() or ()
    return any(level.key() in (kinds.Grad, kinds.Jvp) for level in stack)


# `torch.compiler.assume_constant_result` does this too, but would load TorchDynamo.
_is_differentiated_inside._dynamo_marked_constant = True


# ----------------------------------------------------------------------------------------------- straight to the engine
_need = cache(Need)  # finding one takes less time than making one
# In a backward pass: retain_graph. Other versions of PyTorch lack this function.
graph_is_kept = getattr(torch._C._autograd, "_get_current_graph_task_keep_graph", lambda: True)


def engine_call(prepared, keep, x, hx, cx, weights):
    """Return y, hy, cy and all cell states of a `core.PreparedCall`. keep: backward may follow."""
    if keep:
        return _recurrence(prepared, x, hx, cx, *weights)
    return core.forward_tensors(prepared, x, hx, cx)[:4]


class Recurrence(torch.autograd.Function):
    """Compute y, hy, cy and all cell states; None for absent results.

    Args of apply: a `core.PreparedCall`; x, hx, cx, parameters.
    """

    @staticmethod
    def forward(ctx, prepared, x, hx, cx, *weights):
        y, hy, cy, states, reserve = core.forward_tensors(prepared, x, hx, cx)
        ctx.set_materialize_grads(False)
        ctx.prepared, calls = prepared, prepared.calls
        is_copy = calls.shape.padded or calls.has_checkpoints
        values, ctx.unsaved = (x, hx, cx), None
        if not any(ctx.needs_input_grad[4:]) and not calls.has_checkpoints:
            # Only second derivatives read these: callers may write into them, as with frozen modules of torch.nn.
            values, ctx.unsaved = (None, None, None), [(one, _version(one)) for one in values]
        # y may be a part of the reserve. Saving it lets PyTorch notice that a caller writes into it.
        ctx.save_for_backward(reserve, None if is_copy else y, *values, *weights)
        return y, hy, cy, states

    @staticmethod
    def backward(ctx, *gradients):
        reserve, _, x, hx, cx, *weights = ctx.saved_tensors
        prepared, network = ctx.prepared, ctx.prepared.network
        _, needs_x, needs_hx, needs_cx, *needs_weights = ctx.needs_input_grad
        need = _need(needs_x, any(needs_weights), graph_is_kept(), network.frozen(needs_weights))
        values = (x, hx, cx) if ctx.unsaved is None else [one for one, _ in ctx.unsaved]

        def differentiable(compute, *gradients):
            *d_results, d_states = gradients
            tensors = *_ends(prepared), reserve, d_states, *d_results, *values, gathered(network, weights)
            return second_order.BackwardAgain.apply(network.key, compute, *tensors)

        if torch.is_grad_enabled():  # create_graph
            _require_unchanged(ctx.unsaved or ())
        if second_order.is_vmapped():  # by the operator, which supports vmap
            compute = second_order.by_operator(network.key, prepared.calls.shape, needs_x, need.weights)
            results = second_order.each(partial(differentiable, compute), gradients)
        else:
            needed = needs_hx, needs_cx
            results = core.backward_tensors(prepared, x, weights, reserve, gradients, need, needed)
            if torch.is_grad_enabled():
                known = tuple(results)
                results = differentiable(lambda *_: known, *gradients)
        if not need.again:
            ctx.unsaved = None
        *results, dw = results
        results = [one if needed else None for one, needed in zip(results, (needs_x, needs_hx, needs_cx), strict=True)]
        return None, *results, *gradients_of(network, weights, dw, needs_weights)


# `apply` without its work for calls under functorch's transformations, which do not come here.
_recurrence = super(torch.autograd.Function, Recurrence).apply


def _version(tensor):
    return None if tensor is None or tensor.is_inference() else tensor._version


def _require_unchanged(values):
    """Raise RuntimeError if a tensor of (tensor, its version at forward) pairs has been written to."""
    if any(_version(tensor) != version for tensor, version in values):
        raise RuntimeError(
            "x or an initial state has been modified by an inplace operation since forward; second derivatives "
            "read it again: pass a copy, x.clone(), to the module"
        )


def _ends(prepared):
    """Return a call's lengths, resets and seed as tensors, as operators take them."""
    lengths, resets = tensor_of(prepared.sequences.lengths), tensor_of(prepared.sequences.resets)
    return lengths, resets, None if prepared.key is NO_KEY else torch.tensor(prepared.key[:1])
