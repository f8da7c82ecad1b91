"""What every schedule offers: plans for a problem."""

from abc import ABC, abstractmethod
from functools import lru_cache


class Schedule(ABC):
    """Decides which (layer, direction, steps) runs when.

    The plans are pure functions of a `Problem`; where the schedule cannot run it they raise RuntimeError with the
    numbers that say why.

    Attributes:
        name: what `schedule=` calls it.
    """

    name: str

    @abstractmethod
    def plan_forward(self, problem):
        """The `Plan` of the forward pass."""

    @abstractmethod
    def plan_backward(self, problem, weights=True, input_gradient=True):
        """The plan of the backward pass: data and, with `weights`, parameters. Without `input_gradient` dx of layer 0
        is left out."""

    @abstractmethod
    def plan_weights(self, problem):
        """The plan of the parameters' gradients alone, after a backward pass without them."""

    def pick(self, problem):
        """(schedule, why): the one that runs the problem, of which it depends alone, so that backward takes what
        forward took; why is None where it was asked for by name."""
        return self, None


class SizedSchedule(Schedule):
    """A schedule whose plans depend on layers, directions, steps and dropout, and forward on which layers have an input
    product, so that it runs every problem.

    Args:
        name: of the schedule.
        forward, backward, weights: functions of (L, D, T, dropout) that make the plans; after them `forward` takes
            `Problem.input_products`, `backward` weights and input_gradient.
    """

    def __init__(self, name, forward, backward, weights):
        self.name = name
        self._forward, self._backward, self._weights = forward, backward, weights
        # Plans are of sizes; looked up by problems, whose hash is kept, a call spends no time on it.
        self.plan_forward, self.plan_backward = (lru_cache(1024)(f) for f in (self.plan_forward, self.plan_backward))

    def plan_forward(self, problem):
        return self._forward(*self._sizes(problem), problem.input_products)

    def plan_backward(self, problem, weights=True, input_gradient=True):
        return self._backward(*self._sizes(problem), weights, input_gradient)

    def plan_weights(self, problem):
        return self._weights(*self._sizes(problem))

    def _sizes(self, problem):
        return problem.layers, problem.directions, problem.steps, problem.dropping
