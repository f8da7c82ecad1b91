"""Repeat an eager call of a module with the form of its last one, without checking and looking up everything again.

On small inputs Python takes longer to check a call than the engine to compute it. The form of a call is everything that
checks read, and where the parameters are. A call with the last one's form passes the same checks and needs the same
plans and weights; only the numbers in its arrays differ.
"""

from typing import NamedTuple

import torch

from numbarnn.torch import core
from numbarnn.torch.calls import PLAIN, goes_by_operators, is_in_forward_mode, recurrence, requires_grad


class Last(NamedTuple):
    """The last call that passed all checks.

    Attributes:
        form: from `form_of`.
        prepared: whether backward may follow -> `core.PreparedCall`. None if the parameters are not views of one
            buffer: such a call has a copy of them, which later calls cannot use.
    """

    form: list
    prepared: dict


def form_of(network, batch_first, x, hx, weights):
    """Return everything that a call must have in common with the last one; None if such calls are not remembered.

    Remembered are calls on the CPU that go straight to the engine (`goes_by_operators`), with x of three dimensions,
    without autocast, forward mode and random numbers. The caller must not ask for one with lengths, resets or output
    states.

    Args:
        x, hx: the arguments of a module's caller, not checked. batch_first: of x. weights: the parameters.
    """
    if goes_by_operators(x, weights) or not network.remembers or not x.is_cpu or x.is_nested or x.dim() != 3:
        return None
    if torch.is_autocast_enabled("cpu") or is_in_forward_mode():
        return None
    first = weights[0]
    form = [batch_first, x.shape, x.dtype, first.dtype, first.is_cpu]
    if hx is not None:
        state = hx if network.private else (hx,)
        if not isinstance(state, tuple | list) or len(state) != 1 + network.private:
            return None
        for one in state:
            if type(one) not in PLAIN:
                return None
            form += one.shape, one.dtype, one.is_cpu
    form += [weight.data_ptr() for weight in weights if weight.is_contiguous()]
    return form


def again(network, form, batch_first, x, hx, weights):
    """Return (y, the state) of a call that has the form of the last one; None if it does not."""
    last = network.last_call  # one read: another thread may change it
    if last is None or last.form != form:
        return None
    x = time_first(x) if batch_first else x
    h, c = (hx, None) if hx is None or not network.private else hx
    keep = torch.is_grad_enabled() and requires_grad(x, h, c, weights)
    if keep not in last.prepared:
        prepared, known = core.prepare(network, core.About(), x, h, weights, keep), network.last_weights
        is_theirs = prepared.dtype is None and known is not None and prepared.weights is known.array
        last.prepared[keep] = prepared if is_theirs else None
    prepared = last.prepared[keep]
    if prepared is None:
        return None
    if keep:
        y, h, c, _ = recurrence(network, prepared, x, h, c, *weights)
    else:
        y, h, c, _, _ = core.forward_tensors(prepared, x, h, c)
    return y.transpose(0, 1) if batch_first else y, (h, c) if network.private else h


def time_first(x):
    """Return x (B, T, I) as contiguous (T, B, I): a view, or a copy that both passes share."""
    return x.transpose(0, 1).contiguous()


def remember(network, form):
    """Remember a call that passed all checks as the last one."""
    if network.last_call is None or network.last_call.form != form:
        network.last_call = Last(form, {})
