"""Plans as data: what the schedules list, in which order, and what the check of a plan refuses."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from numbarnn import schedules
from numbarnn.cells import CELLS
from numbarnn.layers import Stack
from numbarnn.schedules import Task, stepwise
from numbarnn.schedules.plan import BOTH, KINDS

SIZES = list(product((1, 2, 3), (1, 2), (1, 7), (False, True)))  # L, D, T, dropout


def all_plans(layers, directions, steps, dropout):
    """Every plan that the schedule makes for a problem."""
    yield stepwise.plan_forward(layers, directions, steps, dropout)
    for weights, input_gradient in product((True, False), repeat=2):
        yield stepwise.plan_backward(layers, directions, steps, dropout, weights, input_gradient)
    yield stepwise.plan_weights(layers, directions, steps)


def listed(plan):
    """The plan's tasks as short text: steps-l1-d0."""
    return [
        f"{task.kind}-l{task.layer}" + ("" if task.direction == BOTH else f"-d{task.direction}") for task in plan.tasks
    ]


@pytest.mark.parametrize("layers, directions, steps, dropout", SIZES)
def test_plans_are_sound(layers, directions, steps, dropout):
    for plan in all_plans(layers, directions, steps, dropout):
        plan.check()
        assert plan.schedule == "stepwise" and plan.reason
        for task in plan.tasks:
            assert task.kind in KINDS and task.layer in range(layers)
            assert task.direction in (BOTH, *range(directions))
            assert (task.first, task.last) == (0, steps)


def test_expected_forward_tasks():
    assert listed(stepwise.plan_forward(1, 1, 5)) == ["input-l0-d0", "steps-l0-d0"]
    assert listed(stepwise.plan_forward(2, 2, 5, dropout=True)) == [
        "input-l0-d0", "steps-l0-d0", "input-l0-d1", "steps-l0-d1",
        "dropout-l1",
        "input-l1-d0", "steps-l1-d0", "input-l1-d1", "steps-l1-d1",
    ]  # fmt: skip


def test_expected_backward_tasks():
    assert listed(stepwise.plan_backward(1, 1, 5)) == ["steps-l0-d0", "input-l0", "weights-l0-d0"]
    assert listed(stepwise.plan_backward(1, 1, 5, weights=False)) == ["steps-l0-d0", "input-l0"]
    assert listed(stepwise.plan_backward(1, 1, 5, input_gradient=False)) == ["steps-l0-d0", "weights-l0-d0"]
    assert listed(stepwise.plan_backward(2, 2, 5, dropout=True)) == [
        "steps-l1-d0", "steps-l1-d1", "input-l1", "weights-l1-d0", "weights-l1-d1", "dropout-l1",
        "steps-l0-d0", "steps-l0-d1", "input-l0", "weights-l0-d0", "weights-l0-d1",
    ]  # fmt: skip
    assert listed(stepwise.plan_weights(2, 1, 5)) == ["weights-l0-d0", "weights-l1-d0"]


def test_tasks_wait_for_what_they_read():
    """Forward: a layer's input product needs all directions below; backward: its walk the gradient from above."""
    forward = {str(task): task for task in stepwise.plan_forward(2, 2, 5, dropout=True).tasks}
    names = [str(need) for need in forward["dropout  layer 1 ↔ steps 0..5"].needs]
    assert names == ["steps    layer 0 → steps 0..5", "steps    layer 0 ← steps 0..5"]
    assert [str(n) for n in forward["input    layer 1 ← steps 0..5"].needs] == ["dropout  layer 1 ↔ steps 0..5"]
    backward = {str(task): task for task in stepwise.plan_backward(2, 2, 5, dropout=True).tasks}
    assert [str(n) for n in backward["steps    layer 0 ← steps 0..5"].needs] == ["dropout  layer 1 ↔ steps 0..5"]
    assert [str(n) for n in backward["weights  layer 0 ← steps 0..5"].needs] == ["steps    layer 0 ← steps 0..5"]
    assert len(backward["input    layer 1 ↔ steps 0..5"].needs) == 2


@pytest.mark.parametrize("layers, directions, steps, dropout", SIZES)
def test_check_refuses_a_task_twice(layers, directions, steps, dropout):
    for plan in all_plans(layers, directions, steps, dropout):
        for task in plan.tasks:
            with pytest.raises(ValueError, match=f"twice: {task}"):
                replace(plan, tasks=(*plan.tasks, task)).check()


@pytest.mark.parametrize("layers, directions, steps, dropout", SIZES)
def test_check_refuses_every_missing_or_late_task(layers, directions, steps, dropout):
    refused = 0
    for plan in all_plans(layers, directions, steps, dropout):
        needed = {need for task in plan.tasks for need in task.needs}
        for position, task in enumerate(plan.tasks):
            others = plan.tasks[:position] + plan.tasks[position + 1 :]
            if task not in needed:
                replace(plan, tasks=others).check()
                continue
            for tasks in (others, (*others, task)):
                with pytest.raises(ValueError, match=f"before '{task}', which it needs"):
                    replace(plan, tasks=tasks).check()
                refused += 1
    assert refused


def test_plans_print_one_line_per_task():
    lines = str(stepwise.plan_forward(2, 2, 7)).splitlines()
    assert lines[0] == f"stepwise forward: {stepwise.REASON}"
    assert lines[1].split() == ["0", "input", "layer", "0", "→", "steps", "0..7"]
    assert len(lines) == 1 + 8
    assert str(stepwise.plan_backward(1, 1, 7)).startswith("stepwise backward: ")


def test_plans_are_made_once():
    assert stepwise.plan_forward(3, 2, 9, True) is stepwise.plan_forward(3, 2, 9, True)


def test_choose():
    assert schedules.choose("auto") is schedules.choose("stepwise") is stepwise
    for module in schedules.SCHEDULES.values():
        assert all(hasattr(module, name) for name in ("NAME", "plan_forward", "plan_backward", "plan_weights"))


# ------------------------------------------------------------------------------------------------------- executors
def test_executor_follows_the_plan(monkeypatch):
    """What runs is what the plan lists, task by task and in its order."""
    done = []
    for executor in (schedules.ForwardPass, schedules.BackwardPass):
        for name in ("_dropout", "_input_product", "_input_gradient", "_steps", "_weights"):
            if hasattr(executor, name):
                original = getattr(executor, name)

                def record(self, task, original=original):
                    done.append(task)
                    return original(self, task)

                monkeypatch.setattr(executor, name, record)
    stack = Stack("gru", 4, (5, 3), dropout=0.5, bidirectional=True, device="cpu")
    weights = np.zeros(stack.space.size, np.float32)
    _, _, _, tape = stack.forward(np.ones((7, 3, 4), np.float32), None, None, weights, training=True)
    assert tuple(done) == stepwise.plan_forward(2, 2, 7, True).tasks
    done.clear()
    stack.backward_data(tape, None, None, None, np.zeros_like(weights))
    assert tuple(done) == stepwise.plan_backward(2, 2, 7, True).tasks


def test_tasks_are_known_by_what_they_do():
    one = Task("steps", 0, 0, 0, 7)
    assert one == Task("steps", 0, 0, 0, 7, needs=(Task("input", 0, 0, 0, 7),)) and hash(one) == hash(replace(one))
    assert one != replace(one, last=6)


def cut(plan, size):
    """The plan with its forward input products and all its steps cut into blocks of at most `size` steps."""
    tasks = []
    for task in plan.tasks:
        whole = task.kind != "steps" and (plan.backward or task.kind == "dropout")
        step = task.last if whole else size
        for first in range(task.first, task.last, step):
            block = Task(task.kind, task.layer, task.direction, first, min(task.last, first + step))
            before = tuple(other for other in tasks if other.layer == task.layer and other.first < first)
            tasks.append(replace(block, needs=before))
    return replace(plan, tasks=tuple(tasks))


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("size", (1, 3))
def test_a_plan_of_blocks_gives_the_same_results(monkeypatch, cell, size):
    """Executors take any cut of the steps: what the schedules to come are made of."""

    def outputs():
        layer = Stack(cell, 4, (5, 6), bidirectional=True, dropout=0.5, dtype="float64", device="cpu", seed=1)
        w = np.random.default_rng(0).uniform(-0.5, 0.5, layer.space.size)
        x = np.random.default_rng(1).standard_normal((7, 3, 4))
        y, hy, cy, tape = layer.forward(x, None, None, w, training=True)
        dw = np.zeros_like(w)
        dx, dhx, dcx = layer.backward_data(tape, np.ones_like(y), None, None, dw)
        return [y, *hy, *(cy or ()), dx, *dhx, *(dcx or ()), dw]

    whole = outputs()
    for name in ("plan_forward", "plan_backward"):
        make = getattr(stepwise, name)

        def make_cut(*arguments, make=make, **options):
            plan = cut(make(*arguments, **options), size)
            plan.check()
            return plan

        monkeypatch.setattr(stepwise, name, make_cut)
    for expected, found in zip(whole, outputs(), strict=True):
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-13)  # BLAS may add up in another order
