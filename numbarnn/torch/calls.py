"""One call of a network on PyTorch's tensors, with gradients: `call`, which the modules use.

Ordinary eager calls go straight to the engine, by one `autograd.Function`; calls that are compiled, exported or
transformed go through the operators of `operators`.
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
from numbarnn.torch.arrays import gradients_of, tensor_of
from numbarnn.torch.operators import autocast_dtype
from numbarnn.torch.transformed import TransformedForward, inmost

PLAIN = {torch.Tensor, torch.nn.Parameter}
_MAX_SEED = 2**62


def _ignore_warnings_of_traces():  # about sizes that are compared here: a graph depends on none of them
    warnings.filterwarnings("ignore", category=torch.jit.TracerWarning, module=r"numbarnn\.torch")


_ignore_warnings_of_traces()


def call(network, about, x, h, private, weights, checked=True):
    """Return (y, the state, with `output_states` the cell states of every step) of one call of a `Network`.

    Args:
        about: a `core.About`. x: (T, B, I), or (B, T, I) with `batch_first`.
        h, private: (L*D, B, P), and a tuple of the cell states (L*D, B, H); None is zero. States are tuples of all.
        weights: the parameters in the order of `network.parts`, or one flat tensor of all in a list. Parameters that
            are views of one flat buffer, at their parts' offsets, are not copied. Gradients are views of one buffer.
        checked: that shapes, dtypes and devices go together.
    """
    x, hx, cx, weights = _cast(x, h, private, weights)
    by_operators = goes_by_operators(x, weights) or is_in_forward_mode()
    if not checked and not by_operators:
        core.check_tensors(network, about, x, hx, cx, weights)
    if torch.compiler.is_compiling() and _is_differentiated_inside():
        torch._dynamo.graph_break("numbarnn leaves derivatives by torch.func within a compiled function to eager calls")
    if about.training and network.draws:
        about = about._replace(seed=torch.randint(_MAX_SEED, (1,)))
    keep = backward_may_follow(x, hx, cx, weights)
    if by_operators:
        y, hy, cy, every = _by_operators(network, about, x, hx, cx, weights, keep)
    else:
        prepared = core.prepare(network, about, x, hx, weights, keep)
        y, hy, cy, every = engine_call(network, prepared, keep, x, hx, cx, weights)
    count = network.private
    state = hy, *(cy.tensor_split(count, dim=2) if count > 1 else [cy] * count)
    if about.output_states:
        return y, state, split_steps(every, count, network.stack.directions)
    return y, state


def engine_call(network, prepared, keep, x, hx, cx, weights):
    """Return y, hy, cy and all cell states of a `core.PreparedCall`; keep: backward may follow."""
    if keep:
        return recurrence(network, prepared, x, hx, cx, *weights)
    return core.forward_tensors(prepared, x, hx, cx)[:4]


def backward_may_follow(x, hx, cx, weights):
    """Return whether backward may follow, so that what it reads must be kept.
    In a program of `torch.jit.trace`, which may run with gradients or without, it may if a tensor has one."""
    if is_in_forward_mode():
        return True
    if not torch.is_grad_enabled() and not torch.jit.is_tracing():
        return False
    if not torch.compiler.is_compiling() and torch._C._are_functorch_transforms_active():
        x, hx, cx, *weights = (inmost(tensor) for tensor in (x, hx, cx, *weights))
    return requires_grad(x, hx, cx, weights)


def is_in_forward_mode():
    """Return whether tensors may have derivatives in forward mode, with or without a gradient.
    Autograd functions refuse these; below them they would be lost, and count as zero."""
    return not torch.compiler.is_compiling() and forward_ad._current_level >= 0


def _is_differentiated_inside():
    """Return whether a compiler reads the call within `torch.func`'s derivatives, unknown to an operator."""
    kinds = torch._C._functorch.TransformType
    stack = torch._C._functorch.get_interpreter_stack() or ()
    return any(level.key() in (kinds.Grad, kinds.Jvp) for level in stack)


# `torch.compiler.assume_constant_result` does this too, but would load TorchDynamo.
_is_differentiated_inside._dynamo_marked_constant = True


def requires_grad(x, hx, cx, weights):
    """Return whether any of these has a gradient."""
    states = (hx is not None and hx.requires_grad) or (cx is not None and cx.requires_grad)
    gradients = [weight.requires_grad for weight in weights]  # a list: torch.compile reads it
    return x.requires_grad or states or any(gradients)


def goes_by_operators(x, weights):
    """Return whether a compiler, a transformation or another kind of tensor must see the call, not the engine."""
    if torch.compiler.is_compiling() or type(x) not in PLAIN or type(weights[0]) not in PLAIN or x.is_meta:
        return True
    if torch._C._get_tracing_state() is not None:
        return True
    return torch._C._are_functorch_transforms_active() or torch._C._len_torch_dispatch_stack() > 0


def _by_operators(network, about, x, hx, cx, weights, keep):
    """Return y, hy, cy and all cell states by `operators.rnn_forward`."""
    lengths, resets = (None if one is None else torch.as_tensor(one) for one in (about.lengths, about.resets))
    if torch.onnx.is_in_onnx_export():
        raise NotImplementedError(
            "torch.onnx.export has no operator for numbarnn's modules: go back to torch.nn's LSTM, GRU and RNN with "
            "numbarnn.torch.restore(model), or make a module with schedule='loop' and load this one's state dict"
        )
    options = network.key, float(about.padding_value), about.batch_first, about.output_states
    transformed = torch._C._are_functorch_transforms_active() or is_in_forward_mode()
    if keep and not torch.compiler.is_compiling() and transformed:
        return TransformedForward.apply(lengths, resets, about.seed, *options, x, hx, cx, *weights)[:4]
    options = *options, keep
    return torch.ops.numbarnn.rnn_forward(x, hx, cx, list(weights), lengths, resets, about.seed, *options)[:4]


def _cast(x, h, private, weights):
    """Return the arguments with h and all cell states as one tensor each.
    Under autocast they have the dtype that it computes with, see `operators.autocast_dtype`."""
    kind = "cuda" if x.is_cuda else "cpu"
    if not x.is_meta and torch.is_autocast_enabled(kind):
        dtype = autocast_dtype(kind)

        def cast(tensor):
            return tensor if tensor.dtype in (dtype, torch.float64) else tensor.to(dtype)

        x, h, private, weights = with_each((x, h, private, weights), cast)  # first: autocast refuses to join some
    return x, None if h is None else _joined((h,)), None if private is None else _joined(private), weights


# ------------------------------------------------------------------------------------------------------------- states
def _joined(states):
    """Join states side by side into one tensor."""
    return torch.cat(list(states), dim=2) if len(states) > 1 else states[0]


# ------------------------------------------------------------------------------------------------ without operators
_need = cache(Need)  # of the same few, which takes less time than another one
try:
    graph_is_kept = torch._C._autograd._get_current_graph_task_keep_graph  # in a backward pass: retain_graph
except AttributeError:  # other versions of PyTorch

    def graph_is_kept():
        return True


class Recurrence(torch.autograd.Function):
    """y, hy, cy and all cell states of x, hx, cx and the parameters; None for absent results.

    Args of apply: the network; a `core.PreparedCall`; x, hx, cx, parameters.
    """

    @staticmethod
    def forward(ctx, network, prepared, x, hx, cx, *weights):
        y, hy, cy, states, reserve = core.forward_tensors(prepared, x, hx, cx)
        ctx.set_materialize_grads(False)
        ctx.call, shape = (network, prepared), prepared.calls.shape
        copied = shape.batch_major or shape.padded or prepared.calls.has_checkpoints  # y out of the reserve
        values, ctx.unsaved = (x, hx, cx), None
        if not any(ctx.needs_input_grad[5:]) and not prepared.calls.has_checkpoints:
            # Only second derivatives read these: callers may write into them, as with frozen modules of torch.nn.
            values, ctx.unsaved = (None, None, None), [(one, _version(one)) for one in values]
        # Writing into y may be writing into the reserve. As y is saved, PyTorch notices it.
        ctx.save_for_backward(reserve, None if copied else y, *values, *weights)
        return y, hy, cy, states

    @staticmethod
    def backward(ctx, dy, dhy, dcy, d_states):
        reserve, _, x, hx, cx, *weights = ctx.saved_tensors
        network, prepared = ctx.call
        _, _, needs_x, needs_hx, needs_cx, *needs_weights = ctx.needs_input_grad
        need = _need(needs_x, any(needs_weights), graph_is_kept(), network.frozen(needs_weights))
        d_results, of_second = (dy, dhy, dcy, d_states), None
        vmapped = second_order.is_vmapped()
        if vmapped or torch.is_grad_enabled():  # create_graph
            options = *prepared.calls.shape, needs_x, [need.weights] * len(weights)
            about = second_order.About(network.key, prepared.calls.shape.batch_major, options)
            values = (x, hx, cx) if ctx.unsaved is None else _unchanged(ctx.unsaved)
            ends, tensors = _ends(prepared), (*values, *weights)

            def of_second(known, dy, dhy, dcy, d_states):
                kept = None if known else reserve
                return second_order.BackwardAgain.apply(about, known, *ends, kept, d_states, dy, dhy, dcy, *tensors)

        if not need.again:
            ctx.unsaved = None
        if vmapped:  # by the operator, which knows vmap
            dx, dhx, dcx, dw = second_order.each(partial(of_second, None), d_results)
            results = None, None, dx, dhx, dcx, *gradients_of(network, weights, dw, needs_weights)
            return tuple(one if needed else None for one, needed in zip(results, ctx.needs_input_grad, strict=True))
        dx, dhx, dcx, dw = core.backward_tensors(
            network, prepared, x, weights, reserve, d_results, need, (needs_hx, needs_cx)
        )
        gradients = dx, dhx, dcx, *gradients_of(network, weights, dw, needs_weights)
        if of_second is not None:
            gradients = of_second(gradients, *d_results)
        return None, None, *gradients


def _version(tensor):
    return None if tensor is None or tensor.is_inference() else tensor._version


def _unchanged(values):
    """Return the tensors of (tensor, its version at forward) pairs, which must be the same with create_graph."""
    for tensor, version in values if torch.is_grad_enabled() else ():
        if _version(tensor) != version:
            raise RuntimeError(
                "x or an initial state has been modified by an inplace operation since forward; second derivatives "
                "read it again: pass a copy, x.clone(), to the module"
            )
    return [tensor for tensor, _ in values]


def _ends(prepared):
    """Return lengths, resets and seed of a call as tensors, as operators take them."""
    lengths, resets = tensor_of(prepared.sequences.lengths), tensor_of(prepared.sequences.resets)
    if resets is not None and prepared.calls.shape.batch_major:
        resets = resets.T
    return lengths, resets, None if prepared.key is NO_KEY else torch.tensor(prepared.key[:1])


# `apply` without its work for calls under functorch's transformations, which do not come here.
recurrence = super(torch.autograd.Function, Recurrence).apply
