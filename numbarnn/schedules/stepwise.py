"""The plain schedule: layer after layer, with one input product over all steps, then each step's products and kernels.

`wavefront` makes the same tasks for several blocks of steps.
"""

from dataclasses import replace
from functools import lru_cache

from numbarnn.schedules.base import SizedSchedule
from numbarnn.schedules.plan import BOTH, Plan, Task, covering, weight_tasks, with_times

NAME = "stepwise"
REASON = "one input product per layer, then for each step its products, each with a pointwise kernel; runs any size"


@lru_cache(maxsize=256)
def plan_forward(layers, directions, steps, dropout=False, products=None):
    """Return the forward plan; arguments as those of `forward_tasks`."""
    return Plan(NAME, False, REASON, forward_tasks(layers, directions, steps, dropout, products, [(0, steps)]))


@lru_cache(maxsize=256)
def plan_backward(layers, directions, steps, dropout=False, weights=True, input_gradient=True):
    """Return the backward plan; arguments as those of `backward_tasks`."""
    blocks = [(0, steps)]
    return Plan(NAME, True, REASON, backward_tasks(layers, directions, steps, dropout, weights, input_gradient, blocks))


def forward_tasks(layers, directions, steps, dropout, products, blocks):
    """Return the forward tasks, layer after layer.

    Args:
        layers, directions, steps: L, D, T. dropout: whether there is dropout between layers.
        products: the layers with an "input" task, see `Problem.input_products`; None: all.
        blocks: [first, last) of each block of steps.
    """
    tasks, below = [], []  # below: the tasks that give the layer's input, with their times
    for layer in range(layers):
        if dropout and layer > 0:
            dropped = [Task("dropout", layer, BOTH, *block, covering(below, slice(*block))) for block in blocks]
            tasks += dropped
            below = with_times(dropped, steps, False)
        recurrences = []
        for direction in range(directions):
            inputs = [Task("input", layer, direction, *block) for block in blocks]
            needs = [covering(below, task.times(steps)) for task in inputs]
            if products is None or layer in products:
                inputs = [replace(task, needs=own) for task, own in zip(inputs, needs, strict=True)]
                tasks, needs = tasks + inputs, [(task,) for task in inputs]
            recurrence = _recurrence(layer, direction, blocks, needs)
            tasks += recurrence
            recurrences += recurrence
        below = with_times(recurrences, steps, False)
    return tuple(tasks)


def backward_tasks(layers, directions, steps, dropout, weights, input_gradient, blocks):
    """Return the backward tasks, from the last layer down: data and, with `weights`, parameters. Without
    `input_gradient` dx of layer 0 is left out. Others as those of `forward_tasks`."""
    tasks, above = [], []  # above: the tasks that give the gradient of the layer's output
    for layer in reversed(range(layers)):
        timed, recurrences = with_times(above, steps, True), []
        for direction in range(directions):
            walks = [Task("steps", layer, direction, *block) for block in blocks]
            needs = [covering(timed, task.times(steps, backward=True)) for task in walks]
            recurrences.append(_recurrence(layer, direction, blocks, needs))
        walks = [task for recurrence in recurrences for task in recurrence]
        tasks += walks
        if layer > 0 or input_gradient:
            timed, times = with_times(walks, steps, True), [(steps - last, steps - first) for first, last in blocks]
            above = [Task("input", layer, BOTH, *when, covering(timed, slice(*when))) for when in times]
            tasks += above
        if weights:
            tasks += weight_tasks(layer, directions, steps, dropout, [recurrence[-1:] for recurrence in recurrences])
        if dropout and layer > 0:
            above = [replace(gradient, kind="dropout", needs=(gradient,)) for gradient in above]
            tasks += above
    return tuple(tasks)


def _recurrence(layer, direction, blocks, needs):
    """Return the "steps" tasks of a layer and direction, one per block, each after the previous one and its needs."""
    tasks = []
    for block, others in zip(blocks, needs, strict=True):
        tasks.append(Task("steps", layer, direction, *block, (*tasks[-1:], *others)))
    return tasks


@lru_cache(maxsize=256)
def plan_weights(layers, directions, steps, dropout=False):
    """Return the plan of the parameters' gradients alone, after a backward pass without them."""
    tasks = [task for layer in range(layers) for task in weight_tasks(layer, directions, steps, dropout)]
    return Plan(NAME, True, REASON, tuple(tasks))


SCHEDULE = SizedSchedule(NAME, plan_forward, plan_backward, plan_weights)
