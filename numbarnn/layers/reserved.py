"""Training calls of a stack whose tape is a flat buffer, the reserve: for those who keep what backward needs.

    shape = Shape(steps, batch)
    y, hy, cy, reserve = forward(stack, shape, x, (hx, cx), weights)
    dx, dhx, dcx, dw = backward(stack, shape, x, weights, reserve, Given(dy, dhy, dcy))

Nothing else is kept between the two calls, and nothing is compared: that x, the weights and the reserve are what they
were is the caller's to see to.
"""

from typing import NamedTuple

from numbarnn.layers.sequences import EVERY_STEP
from numbarnn.passes.backward import ALL, BackwardPass
from numbarnn.passes.bound import SMALL_WEIGHTS
from numbarnn.passes.forward import Call, ForwardPass
from numbarnn.passes.reserve import make_layout


class Shape(NamedTuple):
    """What a backward call has to know of its forward call, besides arrays.

    Attributes:
        steps, batch: T, B.
        padded, resets: whether there were lengths, and resets.
        batch_major: x, y, dy and dx are (B, T, ...).
        seed: key of what the call draws at random.
        keeps_states: whether all private states were asked for.
    """

    steps: int
    batch: int
    padded: bool = False
    resets: bool = False
    batch_major: bool = False
    seed: int = 0
    keeps_states: bool = False


def problem_of(stack, shape):
    """The `Problem` of the training call."""
    sizes = shape.steps, shape.batch, True, shape.padded, shape.resets, shape.batch_major, shape.keeps_states
    return stack.problem(*sizes)


def reserve_size(stack, shape, dtype):
    """Bytes of the reserve in calls of a dtype (a name); T and B may be numbers that are not known yet (PyTorch's)."""
    sizes = {name: getattr(shape, name) for name in ("steps", "batch", "padded", "resets", "batch_major")}
    return make_layout(ForwardPass.table, stack.problem_with(training=True, dtype=dtype, **sizes)).size


def forward(stack, shape, x, state, weights, sequences=EVERY_STEP):
    """y (T, B, D*H), hy, cy (None without private states), all private states if they were asked for, and the reserve
    (bytes,) uint8, of which y may be a part.

    Args:
        shape: a `Shape`. The others are as those of `Stack.forward`, taken as checked; state: (hx, cx).
    """
    engine = stack.engine
    engine.require_no_trouble()
    with engine.activate():
        engine.require_no_capture()
        call = _call(stack, shape, weights)
        plan, bound = _bound(stack, call, x, *state)
        if bound is not None:
            results = bound.run(0, x, *state)
            bound.give_back()
            return results
        work = ForwardPass(call, x, *state, sequences.lengths, sequences.resets, sequences.padding_value)
        work.run(plan)
        return *work.results(), work.reserve


def backward(stack, shape, x, weights, reserve, gradients, need=ALL):
    """dx, dhx, dcx and the flat dw; what is not needed is None, as is dcx without private states.

    Args:
        x: None will do where no gradients of parameters are needed.
        reserve: overwritten, unless it is needed again.
        gradients: a `Given`. need: a `Need`.
    """
    engine = stack.engine
    engine.require_no_trouble()
    with engine.activate():
        engine.require_no_capture()
        call = _call(stack, shape, weights)
        plan = stack.schedule.pick(call.problem)[0].plan_backward(call.problem, need.weights, need.x)
        if not need.weights or stack.space.size <= SMALL_WEIGHTS:
            _, bound = _bound(stack, call)
            if bound is not None:
                bound.remake(x, reserve)
                how = plan, need._replace(again=False), not need.weights  # what is overwritten is its own
                results = bound.run_backward(how, stack.space, gradients)
                bound.give_back()
                return results
        work = BackwardPass(
            ForwardPass.of_reserve(call, x, reserve), gradients, stack.space, None, not need.weights, need
        )
        work.run(plan)
        return *work.results(), work.dw


def _bound(stack, call, x=None, hx=None, cx=None):
    """The forward plan of a call, and a `BoundForward` if such calls are bound, else None."""
    problem = call.problem
    plan = stack.schedule.pick(problem)[0].plan_forward(problem)
    return plan, stack.bound.take(call, plan, x, hx, cx)


def _call(stack, shape, weights):
    """The `Call`."""
    problem, (parameters, flat, formed) = problem_of(stack, shape), stack.kernels_weights(weights)
    return Call(stack.engine, problem, parameters, flat, shape.seed, 0, stack.caller, reserves=True, formed=formed)
