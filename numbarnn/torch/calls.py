"""One call of a network on PyTorch's tensors, with gradients: `run`, on which the modules stand."""

import warnings

import torch
from torch.autograd import forward_ad

from numbarnn.layers.private import split_steps
from numbarnn.programs.states import with_each
from numbarnn.torch import batching, core  # noqa: F401 - which registers torch.ops.numbarnn and its rules
from numbarnn.torch.eager import recurrence
from numbarnn.torch.operators import autocast_dtype
from numbarnn.torch.transformed import Forward, inmost

PLAIN = {torch.Tensor, torch.nn.Parameter}
_MAX_SEED = 2**62


def _ignore_warnings_of_traces():
    """What `torch.jit.trace` says of sizes that are compared here: a graph depends on none of them. PyTorch does the
    same for its own modules."""
    warnings.filterwarnings("ignore", category=torch.jit.TracerWarning, module=r"numbarnn\.torch")


_ignore_warnings_of_traces()


def run(network, x, hx, cx, weights, **about):
    """y, hy, cy of a `Network`, and with `output_states` all private states.

    Ordinary calls go straight to the engine; those that are compiled, exported or transformed go through the operators
    of `operators`.

    Args:
        x: (T, B, I), or (B, T, I) with `batch_first`.
        hx: (L*D, B, P), or a list with one (D, B, P) per layer where sizes differ; None is zero.
        cx: the private state, likewise of H; a tuple of them if the cell has several; None is zero, or there is none.
        weights: the parameters in the order of `network.parts`, or one flat tensor of all. Parameters that are views of
            one flat buffer, at their parts' offsets, are not copied, others are gathered in each call. Gradients of
            them are views of one flat buffer.
        about: `lengths`, `resets`, `padding_value`, `batch_first`, `output_states` and `training` of a `core.About`.

    Returns:
        y, hy, cy in the forms of x, hx and cx; cy is None without private states.
        states: a tuple of the private states of every step, each (T, B, D*H), or (B, T, D*H).

    Raises:
        TypeError: tensors of a dtype, or on a device, that no engine computes with; says the cure.
        ValueError: shapes, dtypes or devices do not go together.
    """
    weights = [weights] if isinstance(weights, torch.Tensor) else weights
    about = core.About(**about)
    x, hx, cx, weights = _cast(network, x, hx, cx, weights)
    if not goes_by_operators(x, weights):
        core.check(network, about, x, hx, cx, weights)
    return _called(network, about, x, hx, cx, weights)


def call(network, about, x, hx, cx, weights):
    """`run` of what the caller has checked, for modules."""
    x, hx, cx, weights = _cast(network, x, hx, cx, weights)
    return _called(network, about, x, hx, cx, weights)


def _called(network, about, x, hx, cx, weights):
    """What `run` returns; states are one tensor each here."""
    if torch.compiler.is_compiling() and _is_differentiated_inside():
        torch._dynamo.graph_break("numbarnn leaves derivatives by torch.func within a compiled function to eager calls")
    if about.training and network.draws:
        about = about._replace(seed=torch.randint(_MAX_SEED, (1,)))
    keep = backward_may_follow(x, hx, cx, weights)
    if goes_by_operators(x, weights):
        y, hy, cy, every = _by_operators(network, about, x, hx, cx, weights, keep)
    elif keep:
        y, hy, cy, every = recurrence(network, about, x, hx, cx, *weights)
    else:
        prepared = core.prepare(network, about, x, hx, weights, keep=False)
        y, hy, cy, every, _ = core.forward(network, prepared, x, hx, cx)
    if not network.private:
        cy = None
    if network.uneven or network.private > 1:
        hy, cy = apart(network, hy), apart_privates(network, cy)
    if about.output_states:
        return y, hy, cy, split_steps(every, network.private, network.stack.directions)
    return y, hy, cy


def backward_may_follow(x, hx, cx, weights):
    """Whether what backward reads has to be kept. A program of `torch.jit.trace` may run with gradients or without:
    there it is kept if a tensor has one."""
    if is_in_forward_mode():
        return True
    if not torch.is_grad_enabled() and not torch.jit.is_tracing():
        return False
    if not torch.compiler.is_compiling() and torch._C._are_functorch_transforms_active():
        x, hx, cx, *weights = (inmost(tensor) for tensor in (x, hx, cx, *weights))
    return requires_grad(x, hx, cx, weights)


def is_in_forward_mode():
    """Whether tensors may have derivatives in forward mode, with or without a gradient. Autograd functions refuse
    these; below them they would be lost, and count as zero."""
    return not torch.compiler.is_compiling() and forward_ad._current_level >= 0


def _is_differentiated_inside():
    """Whether a compiler reads the call within `torch.func`'s derivatives, of which an operator knows nothing."""
    kinds = torch._C._functorch.TransformType
    stack = torch._C._functorch.get_interpreter_stack() or ()
    return any(level.key() in (kinds.Grad, kinds.Jvp) for level in stack)


# As `torch.compiler.assume_constant_result` does, which would load TorchDynamo.
_is_differentiated_inside._dynamo_marked_constant = True


def requires_grad(x, hx, cx, weights):
    """Whether any of these has a gradient."""
    if weights[0].requires_grad or x.requires_grad:
        return True
    if (hx is not None and hx.requires_grad) or (cx is not None and cx.requires_grad):
        return True
    return any([weight.requires_grad for weight in weights])  # a list: torch.compile reads it


def goes_by_operators(x, weights):
    """Whether something else than the engine is to see the call: a compiler, a transformation, other tensors."""
    if torch.compiler.is_compiling():
        return True
    if type(x) not in PLAIN or type(weights[0]) not in PLAIN or x.is_meta:
        return True
    if torch._C._get_tracing_state() is not None:
        return True
    return torch._C._are_functorch_transforms_active() or torch._C._len_torch_dispatch_stack() > 0


def _by_operators(network, about, x, hx, cx, weights, keep):
    """y, hy, cy and all private states by `operators.rnn_forward`."""
    lengths, resets = (
        one if one is None or isinstance(one, torch.Tensor) else torch.as_tensor(one)
        for one in (about.lengths, about.resets)
    )
    if torch.onnx.is_in_onnx_export():
        raise NotImplementedError(
            "torch.onnx.export knows no operator for numbarnn's modules: let torch.nn compute them again with "
            "numbarnn.torch.restore(model) before, which it can with those of LSTM, GRU and RNN"
        )
    options = network.key, float(about.padding_value), about.batch_first, about.output_states
    transformed = torch._C._are_functorch_transforms_active() or is_in_forward_mode()
    if keep and not torch.compiler.is_compiling() and transformed:
        return Forward.apply(lengths, resets, about.seed, *options, x, hx, cx, *weights)[:4]
    options = *options, keep
    return torch.ops.numbarnn.rnn_forward(x, hx, cx, list(weights), lengths, resets, about.seed, *options)[:4]


def _cast(network, x, hx, cx, weights):
    """These with each state as one tensor; where autocast is on, as what it computes with, see
    `operators.autocast_dtype`."""
    kind = "cuda" if x.is_cuda else "cpu"
    if not x.is_meta and torch.is_autocast_enabled(kind):
        dtype = autocast_dtype(kind)

        def cast(tensor):
            return tensor if tensor.dtype in (dtype, torch.float64) else tensor.to(dtype)

        x, hx, cx, weights = with_each((x, hx, cx, weights), cast)  # first: autocast refuses to join some dtypes
    return x, joined(hx), joined_privates(network, cx), weights


# ------------------------------------------------------------------------------------------------------------- states
def joined(state):
    """A state as one tensor: of layers that differ in size side by side, (D, B, sum of H)."""
    return torch.cat(list(state), dim=2) if isinstance(state, list | tuple) else state


def joined_privates(network, states):
    """All private states as one tensor, those of a layer side by side."""
    if network.private < 2 or not isinstance(states, list | tuple):
        return joined(states)
    if network.uneven:
        return torch.cat([part for parts in zip(*states, strict=True) for part in parts], dim=2)
    return torch.cat(list(states), dim=2)


def apart(network, state):
    """The reverse of `joined`, for h."""
    return list(state.split(list(network.stack.output_widths), dim=2)) if network.uneven else state


def apart_privates(network, states):
    """The reverse of `joined_privates`."""
    if states is None:
        return None
    N, widths = network.private, network.stack.widths
    if not network.uneven:
        return tuple(states.split([widths[0]] * N, dim=2)) if N > 1 else states
    parts = states.split([width for width in widths for _ in range(N)], dim=2)
    if N == 1:
        return list(parts)
    return tuple(list(parts[number::N]) for number in range(N))
