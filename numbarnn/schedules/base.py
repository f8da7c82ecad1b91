"""What every schedule offers: plans for a problem, and running them on a pass."""

from abc import ABC, abstractmethod


class Schedule(ABC):
    """Decides which (layer, direction, steps) runs when.

    The plans are pure functions of a `Problem`; where the schedule cannot run it they raise RuntimeError with the
    numbers that say why. A schedule that runs a plan in a way of its own overrides the `run_` methods.

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

    def run_forward(self, work):
        """Run the forward pass of a `ForwardPass`."""
        work.run(self.plan_forward(work.problem))

    def run_backward(self, work, weights=True):
        """Run the backward pass of a `BackwardPass`; with `weights` for its `dw` too."""
        work.run(self.plan_backward(work.problem, weights))

    def run_weights(self, work):
        """Run what `run_backward` without weights left out."""
        work.run(self.plan_weights(work.problem))


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

    def plan_forward(self, problem):
        return self._forward(*self._sizes(problem), problem.input_products)

    def plan_backward(self, problem, weights=True, input_gradient=True):
        return self._backward(*self._sizes(problem), weights, input_gradient)

    def plan_weights(self, problem):
        return self._weights(*self._sizes(problem))

    def _sizes(self, problem):
        return problem.layers, problem.directions, problem.steps, problem.dropping
