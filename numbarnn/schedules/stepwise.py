"""The plain schedule: layer after layer; one input product over all steps, then each step's products and kernels."""

from functools import lru_cache

from numbarnn.schedules.base import SizedSchedule
from numbarnn.schedules.plan import BOTH, Plan, Task, weight_tasks

NAME = "stepwise"
REASON = "one input product per layer, then for each step its products, each with a pointwise kernel; runs any size"


@lru_cache(maxsize=256)
def plan_forward(layers, directions, steps, dropout=False, products=None):
    """Return the forward plan.

    Args:
        layers, directions, steps: L, D, T. dropout: whether there is dropout between layers.
        products: the layers with an "input" task, see `Problem.input_products`; None: all.
    """
    tasks, below = [], ()
    for layer in range(layers):
        if dropout and layer > 0:
            tasks.append(Task("dropout", layer, BOTH, 0, steps, below))
            below = (tasks[-1],)
        done = []
        for direction in range(directions):
            needs = below
            if products is None or layer in products:
                tasks.append(Task("input", layer, direction, 0, steps, below))
                needs = (tasks[-1],)
            tasks.append(Task("steps", layer, direction, 0, steps, needs))
            done.append(tasks[-1])
        below = tuple(done)
    return Plan(NAME, False, REASON, tuple(tasks))


@lru_cache(maxsize=256)
def plan_backward(layers, directions, steps, dropout=False, weights=True, input_gradient=True):
    """Return the backward plan: data and, with `weights`, parameters. Without `input_gradient` dx of layer 0 is left
    out."""
    tasks, above = [], ()
    for layer in reversed(range(layers)):
        recurrences = [Task("steps", layer, direction, 0, steps, above) for direction in range(directions)]
        tasks += recurrences
        if layer > 0 or input_gradient:
            tasks.append(Task("input", layer, BOTH, 0, steps, tuple(recurrences)))
            above = (tasks[-1],)
        if weights:
            tasks += weight_tasks(layer, directions, steps, dropout, [(task,) for task in recurrences])
        if dropout and layer > 0:
            tasks.append(Task("dropout", layer, BOTH, 0, steps, above))
            above = (tasks[-1],)
    return Plan(NAME, True, REASON, tuple(tasks))


@lru_cache(maxsize=256)
def plan_weights(layers, directions, steps, dropout=False):
    """Return the plan of the parameters' gradients alone, after a backward pass without them."""
    tasks = [task for layer in range(layers) for task in weight_tasks(layer, directions, steps, dropout)]
    return Plan(NAME, True, REASON, tuple(tasks))


SCHEDULE = SizedSchedule(NAME, plan_forward, plan_backward, plan_weights)
