"""The interface of every schedule: plans for a problem."""

from abc import ABC, abstractmethod
from functools import lru_cache


class Schedule(ABC):
    """Decides which (layer, direction, steps) runs when.

    The plans are pure functions of a `Problem`. If the schedule cannot run it, they raise RuntimeError with the numbers
    that say why.

    Attributes:
        name: its name in `schedule=`.
    """

    name: str

    @abstractmethod
    def plan_forward(self, problem):
        """Return the `Plan` of the forward pass."""

    @abstractmethod
    def plan_backward(self, problem, weights=True, input_gradient=True):
        """Return the plan of the backward pass: data and, with `weights`, parameters.
        Without `input_gradient` dx of layer 0 is left out."""

    @abstractmethod
    def plan_weights(self, problem):
        """Return the plan of the parameters' gradients alone, after a backward pass without them."""

    def pick(self, problem):
        """Return (schedule, why): the schedule that runs the problem, and the reason. why is None if the user named it.
        The choice depends on the problem alone, so backward takes the same schedule as forward."""
        return self, None


class SizedSchedule(Schedule):
    """A schedule that runs every problem, with plans that depend on layers, directions, steps and dropout.

    Forward plans also depend on which layers have an input product.

    Args:
        name: of the schedule.
        forward, backward, weights: functions of (L, D, T, dropout) that make the plans. `forward` also takes
            `Problem.input_products`, `backward` also weights and input_gradient.
    """

    def __init__(self, name, forward, backward, weights):
        self.name = name
        self._forward, self._backward, self._weights = forward, backward, weights
        # Plans depend on sizes, but are looked up by problems, whose hash is cached: a call spends no time on it.
        self.plan_forward, self.plan_backward = (lru_cache(1024)(f) for f in (self.plan_forward, self.plan_backward))

    def plan_forward(self, problem):
        return self._forward(*self._sizes(problem), problem.input_products)

    def plan_backward(self, problem, weights=True, input_gradient=True):
        return self._backward(*self._sizes(problem), weights, input_gradient)

    def plan_weights(self, problem):
        return self._weights(*self._sizes(problem))

    def _sizes(self, problem):
        return problem.layers, problem.directions, problem.steps, problem.dropping
