"""The schedule "auto": for each problem the one that is expected to be the fastest, and why."""

from dataclasses import replace

from numbarnn.schedules import stepwise, wavefront
from numbarnn.schedules.base import Schedule


class Auto(Schedule):
    """Leaves everything to the schedule that `pick` takes."""

    name = "auto"

    def pick(self, problem):
        """(schedule, why): depends on the problem alone, so that backward takes what forward took."""
        if problem.engine == "cuda" and problem.layers * problem.directions > 1:
            return wavefront.SCHEDULE, "several layers or directions on a GPU"
        if problem.engine == "cuda":
            return stepwise.SCHEDULE, "one layer and direction"
        return stepwise.SCHEDULE, f"{problem.engine} works on one layer and direction at a time"

    def plan_forward(self, problem):
        return self._explained(problem, lambda schedule: schedule.plan_forward(problem))

    def plan_backward(self, problem, weights=True, input_gradient=True):
        return self._explained(problem, lambda schedule: schedule.plan_backward(problem, weights, input_gradient))

    def plan_weights(self, problem):
        return self._explained(problem, lambda schedule: schedule.plan_weights(problem))

    def _explained(self, problem, make):
        """The plan that `make` gets of the schedule, with why that was taken in its reason."""
        schedule, why = self.pick(problem)
        plan = make(schedule)
        return replace(plan, reason=f"{plan.reason} (auto: {why})")

    def run_forward(self, work):
        self.pick(work.problem)[0].run_forward(work)

    def run_backward(self, walk, weights=True):
        self.pick(walk.problem)[0].run_backward(walk, weights)

    def run_weights(self, walk):
        self.pick(walk.problem)[0].run_weights(walk)


AUTO = Auto()
