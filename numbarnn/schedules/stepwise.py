"""The plain schedule: layer after layer, with one input product over all steps, then each step's products and kernels.

`wavefront` makes the same tasks for several blocks of steps.
"""

from dataclasses import replace
from functools import lru_cache

from numbarnn.schedules.base import Schedule
from numbarnn.schedules.plan import BOTH, Plan, Task, covering, weight_tasks, with_times

NAME = "stepwise"
REASON = "layer after layer, and step after step, each with its products and its cell; runs any size"


class SizedSchedule(Schedule):
    """A schedule for every problem, with plans that depend on layers, directions, steps, dropout and `input_products`.

    Args:
        name: of the schedule.
        blocks_of: f(layers, steps) -> [first, last) of each block of steps.
        reason_of: f(layers, steps) -> why the schedule is chosen, as text.
        order: function that sorts the tasks of a pass. concurrent: see `Plan`.
    """

    def __init__(self, name, blocks_of, reason_of, order=tuple, concurrent=False):
        self.name, self._blocks_of, self._reason_of, self._order, self._concurrent = (
            name, blocks_of, reason_of, order, concurrent,
        )  # fmt: skip
        # A plan of many blocks takes milliseconds, and each batch size asks for it again.
        self.forward, self.backward, self.weights = map(lru_cache(256), (self._forward, self._backward, self._weights))

    def plan_forward(self, problem):
        return self.forward(*self._sizes(problem), tuple(problem.input_products))

    def plan_backward(self, problem, weights=True, input_gradient=True):
        return self.backward(*self._sizes(problem), weights, input_gradient)

    def plan_weights(self, problem):
        return self.weights(*self._sizes(problem))

    def _sizes(self, problem):
        return problem.layers, problem.directions, problem.steps, problem.dropping

    def _forward(self, layers, directions, steps, dropout=False, products=None):
        tasks = forward_tasks(layers, directions, steps, dropout, products, self._blocks_of(layers, steps))
        return self._plan(False, layers, steps, self._order(tasks))

    def _backward(self, layers, directions, steps, dropout=False, weights=True, input_gradient=True):
        blocks = self._blocks_of(layers, steps)
        tasks = backward_tasks(layers, directions, steps, dropout, weights, input_gradient, blocks)
        return self._plan(True, layers, steps, self._order(tasks))

    def _weights(self, layers, directions, steps, dropout=False):
        tasks = [task for layer in range(layers) for task in weight_tasks(layer, directions, steps, dropout)]
        return self._plan(True, layers, steps, tuple(tasks))

    def _plan(self, backward, layers, steps, tasks):
        return Plan(self.name, backward, self._reason_of(layers, steps), tasks, self._concurrent)


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
                inputs = [replace(task, needs=needs_of_task) for task, needs_of_task in zip(inputs, needs, strict=True)]
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
    for block, inputs in zip(blocks, needs, strict=True):
        tasks.append(Task("steps", layer, direction, *block, (*tasks[-1:], *inputs)))
    return tasks


SCHEDULE = SizedSchedule(NAME, lambda layers, steps: [(0, steps)], lambda layers, steps: REASON)
