"""Anti-diagonals of (layer, block of steps): while a layer works on a block of steps, the next one works on the
previous.

Each block has its input product, dropout mask and stretch of the recurrence. The gradients of a layer's parameters are
one task per direction over all steps, which adds them in the same order as "stepwise". It runs while the layers below
run their steps. With two directions a layer's first block needs all of the layer below, so layers hardly overlap. The
two directions overlap, and so do input products with the recurrence below them.
"""

from dataclasses import replace
from functools import lru_cache

from numbarnn.common.words import counted
from numbarnn.schedules import stepwise
from numbarnn.schedules.base import SizedSchedule
from numbarnn.schedules.plan import BOTH, Plan, Task, covering, weight_tasks, with_times

NAME = "wavefront"

# Blocks per layer, for each layer above the first. L layers of n blocks take as long as n + L - 1 blocks of one: with n
# = FILL (L - 1) the ends of the wavefront, where some layers are idle, cost 1 / FILL of one layer's time. More blocks
# mean smaller, less efficient input products.
FILL = 8


def block_steps(layers, steps):
    """Return the steps per block: T in FILL (L - 1) blocks, or in as many as there are steps; all T if L is 1."""
    blocks = max(1, min(steps, FILL * (layers - 1)))
    return -(-steps // blocks)


def _blocks(layers, steps):
    """Return [first, last) of each block."""
    size = block_steps(layers, steps)
    return [(first, min(first + size, steps)) for first in range(0, steps, size)]


def _reason(layers, steps):
    size = block_steps(layers, steps)
    blocks = f"{counted(-(-steps // size), 'block')} of {counted(size, 'step')}"
    return f"{blocks} per layer and direction, side by side where their data allow"


def _by_diagonals(plan):
    """Return the plan with its tasks in the order in which their needs are met if all tasks take the same time."""
    levels = {}  # by identity: comparing tasks by their fields takes longer than all else here
    for task in plan.tasks:
        levels[id(task)] = 1 + max([levels[id(need)] for need in task.needs], default=-1)
    return replace(plan, tasks=tuple(sorted(plan.tasks, key=lambda task: levels[id(task)])))


def _recurrence(layer, direction, blocks, needs):
    """Return the "steps" tasks of a layer and direction, each after the previous one and after needs(first, last)."""
    tasks = []
    for first, last in blocks:
        tasks.append(Task("steps", layer, direction, first, last, (*tasks[-1:], *needs(first, last))))
    return tasks


@lru_cache(maxsize=256)
def plan_forward(layers, directions, steps, dropout=False, products=None):
    """Return the forward plan; arguments as in `stepwise.plan_forward`."""
    blocks = _blocks(layers, steps)
    tasks, below = [], []  # below: the tasks that give the layer's input, with their times
    for layer in range(layers):
        if dropout and layer > 0:
            dropped = [
                Task("dropout", layer, BOTH, first, last, covering(below, slice(first, last))) for first, last in blocks
            ]
            tasks += dropped
            below = with_times(dropped, steps, False)
        recurrences = []
        for direction in range(directions):
            needs = {}
            for first, last in blocks:
                product = Task("input", layer, direction, first, last)
                needs[first, last] = covering(below, product.times(steps))
                if products is None or layer in products:
                    tasks.append(Task("input", layer, direction, first, last, needs[first, last]))
                    needs[first, last] = (tasks[-1],)
            recurrences += _recurrence(layer, direction, blocks, lambda *block, needs=needs: needs[block])
        tasks += recurrences
        below = with_times(recurrences, steps, False)
    return _by_diagonals(Plan(NAME, False, _reason(layers, steps), tuple(tasks), concurrent=True))


@lru_cache(maxsize=256)
def plan_backward(layers, directions, steps, dropout=False, weights=True, input_gradient=True):
    """Return the backward plan; arguments as in `stepwise.plan_backward`."""
    blocks = _blocks(layers, steps)
    tasks, above = [], []  # above: the tasks that give the gradient of the layer's output
    for layer in reversed(range(layers)):
        recurrences, timed = [], with_times(above, steps, True)
        for direction in range(directions):

            def needs(first, last, layer=layer, direction=direction, timed=timed):
                return covering(timed, Task("steps", layer, direction, first, last).times(steps, backward=True))

            recurrences.append(_recurrence(layer, direction, blocks, needs))
        tasks += [task for recurrence in recurrences for task in recurrence]
        if layer > 0 or input_gradient:
            times = [(steps - last, steps - first) for first, last in blocks]
            above = _input_gradients(layer, times, recurrences, steps)
            tasks += above
        if dropout and layer > 0:
            above = [replace(gradient, kind="dropout", needs=(gradient,)) for gradient in above]
            tasks += above
        if weights:
            tasks += weight_tasks(layer, directions, steps, dropout, [recurrence[-1:] for recurrence in recurrences])
    return _by_diagonals(Plan(NAME, True, _reason(layers, steps), tuple(tasks), concurrent=True))


def _input_gradients(layer, blocks, recurrences, steps):
    """Return the tasks for the gradient of a layer's input, one per block of times."""
    timed = with_times([task for each in recurrences for task in each], steps, True)
    tasks = []
    for first, last in blocks:
        tasks.append(Task("input", layer, BOTH, first, last, covering(timed, slice(first, last))))
    return tasks


@lru_cache(maxsize=256)
def plan_weights(layers, directions, steps, dropout=False):
    """Return the plan of the parameters' gradients alone: all of them side by side."""
    plan = stepwise.plan_weights(layers, directions, steps, dropout)
    return replace(plan, schedule=NAME, reason=_reason(layers, steps), concurrent=True)


SCHEDULE = SizedSchedule(NAME, plan_forward, plan_backward, plan_weights)
