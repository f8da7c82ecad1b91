"""The interface of every schedule: plans for a problem."""

from abc import ABC, abstractmethod


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
