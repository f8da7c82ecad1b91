"""Plans as data: what the schedules list, in which order, and what the check of a plan refuses."""

import random
from dataclasses import replace
from itertools import product

import pytest

from cases import Case
from comparing import assert_close, assert_same_bits
from numbarnn import schedules
from numbarnn.cells import CELLS
from numbarnn.engines.cpu import engine as cpu
from numbarnn.schedules import Problem, Task, choose, stepwise, wavefront
from numbarnn.schedules.explain import explain
from numbarnn.schedules.persistent import planner
from numbarnn.schedules.plan import BOTH, KINDS
from plan_orders import problem_of
from problems import make_problem
from running import train

SIZES = list(product((1, 2, 3), (1, 2), (1, 7, 19), (False, True)))  # L, D, T, dropout
by_size = pytest.mark.parametrize("layers, directions, steps, dropout", SIZES)
by_schedule = pytest.mark.parametrize("schedule", (choose("stepwise"), choose("wavefront")), ids=lambda one: one.name)


def all_plans(schedule, layers, directions, steps, dropout):
    """Every plan that the schedule makes for a problem."""
    for products in (None, range(0), range(1)):
        yield schedule.forward(layers, directions, steps, dropout, products)
    for weights, input_gradient in product((True, False), repeat=2):
        yield schedule.backward(layers, directions, steps, dropout, weights, input_gradient)
    yield schedule.weights(layers, directions, steps, dropout)


def problem(**options):
    """A problem of one LSTM layer on the CPU, but for the options."""
    sizes = dict(input_size=4, hidden_sizes=(5,), directions=1, steps=7, batch=3)
    return Problem(**{"engine": "cpu", "cell": CELLS["lstm"], "dtype": "float32", "training": True, **sizes, **options})


@by_schedule
@by_size
def test_plans_are_sound(schedule, layers, directions, steps, dropout):
    """Every task is one there is, and each step of each layer and direction is done once by each kind of task."""
    for plan in all_plans(schedule, layers, directions, steps, dropout):
        plan.check()
        assert plan.schedule == schedule.name and plan.reason and plan.concurrent == (schedule.name == "wavefront")
        done = {}
        for task in plan.tasks:
            assert task.kind in KINDS and task.layer in range(layers)
            assert task.direction in (BOTH, *range(directions))
            times = task.times(steps, plan.backward)
            assert times.stop - times.start == task.last - task.first
            done.setdefault((task.kind, task.layer, task.direction), []).extend(range(steps)[times])
        assert all(sorted(times) == list(range(steps)) for times in done.values())
        if schedule.name == "stepwise":
            assert len(plan.tasks) == len(done)  # no blocks


def touched(task, plan, directions, steps):
    """(what the task reads, what it writes), as sets of (buffer, layer, direction, time)."""
    when, every, layer = range(steps)[task.times(steps, plan.backward)], range(steps), task.layer
    both, own = range(directions), [task.direction]
    fed = any((other.kind, other.layer) == ("input", layer) for other in plan.tasks)

    def part(buffer, layer, directions, times):
        return {(buffer, layer, direction, time) for direction in directions for time in times}

    if task.kind == "remake":
        return set(), part("dropped", layer, both, every)
    if not plan.backward:
        y = part("h", layer - 1, both, when) if layer else set()
        own_x = set() if fed else y | part("dropped", layer, both, when)  # steps that compute x Wᵀ
        return {
            "dropout": (y, part("dropped", layer, both, when)),
            "input": (y | part("dropped", layer, both, when), part("ax", layer, own, when)),
            "steps": (own_x, part("ax", layer, own, when) | part("h", layer, own, when) | {("state", layer, *own)}),
        }[task.kind]
    dx = part("dy", layer - 1, both, when)
    return {
        "steps": (part("dy", layer, both, when), part("dax", layer, own, when) | {("state", layer, *own)}),
        "input": (part("dax", layer, both, when), dx),
        "dropout": (set(), dx),
        "weights": (part("dax", layer, own, every) | part("dropped", layer, both, every), {("dw", layer, *own)}),
    }[task.kind]


@by_schedule
@by_size
def test_tasks_wait_for_all_that_touches_what_they_touch(schedule, layers, directions, steps, dropout):
    """Of two tasks that use the same memory, one writing it, the later one in the plan needs the earlier, if not
    directly. So any order that keeps needs is right, and so is any overlap."""
    for plan in all_plans(schedule, layers, directions, steps, dropout):
        needed = []  # positions of all that a task needs, directly or not
        uses = [touched(task, plan, directions, steps) for task in plan.tasks]
        for number, needs in enumerate(plan.needs):
            needed.append(set(needs).union(*(needed[need] for need in needs)))
            reads, writes = uses[number]
            for earlier in set(range(number)) - needed[number]:
                earlier_reads, earlier_writes = uses[earlier]
                shared = (writes & (earlier_reads | earlier_writes)) | (reads & earlier_writes)
                assert not shared, f"{plan.tasks[number]} and {plan.tasks[earlier]} share {shared}"


def test_gradients_that_nobody_reads_are_not_in_a_plan():
    """Nor what only they would need once more, a layer's dropped-out input."""
    whole = stepwise.SCHEDULE.backward(3, 2, 4, dropout=True)
    plan = whole.without_weights({(0, 0), (1, 0), (1, 1), (2, 0)})
    plan.check()
    left_out = {(task.kind, task.layer, task.direction) for task in set(whole.tasks) - set(plan.tasks)}
    assert left_out == {("weights", 0, 0), ("weights", 1, 0), ("weights", 1, 1), ("weights", 2, 0), ("remake", 1, BOTH)}
    assert [task for task in whole.tasks if task in plan.tasks] == list(plan.tasks)


def test_plans_print_one_line_per_task():
    lines = str(stepwise.SCHEDULE.forward(2, 2, 7)).splitlines()
    assert lines[0] == f"stepwise forward: {stepwise.REASON}"
    assert lines[1].split() == ["0", "input", "layer", "0", "→", "steps", "0..7"]
    assert len(lines) == 1 + 8
    assert str(stepwise.SCHEDULE.backward(1, 1, 7)).startswith("stepwise backward: ")


def test_timeline():
    """One after another without lanes; with them as early as needs and lanes allow."""
    plan = stepwise.SCHEDULE.forward(1, 2, 7)
    assert [(span.start, span.end) for span in plan.timeline()] == [(0, 1), (1, 2), (2, 3), (3, 4)]
    tasks = [(0, 1), (1, 2), (0, 1), (1, 2)]
    assert [(span.start, span.end) for span in replace(plan, concurrent=True).timeline()] == tasks
    spans = replace(plan, concurrent=True).timeline(lambda task: 5 if task.kind == "steps" else 0.5)
    assert [(span.start, span.end) for span in spans] == [(0, 0.5), (0.5, 5.5)] * 2
    assert [span.task for span in spans] == list(plan.tasks)
    one_lane = replace(plan, tasks=(Task("input", 0, 0, 0, 3), Task("input", 0, 0, 3, 7)), concurrent=True)
    assert [span.start for span in one_lane.timeline()] == [0, 1]


def test_auto_says_what_it_took_and_why():
    auto = schedules.choose("auto")
    for options, taken in (
        (dict(engine="cpu", hidden_sizes=(5, 5)), "stepwise"),
        (dict(engine="sim", directions=2), "stepwise"),
        (dict(engine="cuda"), "stepwise"),
        (dict(engine="cuda", directions=2), "wavefront"),
        (dict(engine="cuda", hidden_sizes=(5, 6)), "wavefront"),
    ):
        case = problem(**options)
        schedule, why = auto.pick(case)
        assert schedule.name == taken and why and f"(auto: {why})" in str(explain(auto, case, False))


# ------------------------------------------------------------------------------------------------------- executors


# ------------------------------------------------------------------------------------------------------------ wavefront


@pytest.fixture
def engine(cpu_on_threads):
    return cpu_on_threads


def test_blocks_of_a_layer_overlap_with_those_above():
    """Two layers of n blocks take n + 2 units of time in the recurrences' lanes, not 2 n: one input product between."""
    plan = wavefront.SCHEDULE.forward(2, 1, 80)
    steps = [span for span in plan.timeline() if span.task.kind == "steps"]
    assert len(steps) == 16 and max(span.end for span in steps) == 1 + 8 + 2
    backward = [span for span in wavefront.SCHEDULE.backward(2, 1, 80).timeline() if span.task.kind == "steps"]
    assert max(span.end for span in backward) == 8 + 2


def test_directions_overlap_and_layers_wait_for_both():
    plan = wavefront.SCHEDULE.forward(2, 2, 16)
    spans = {str(span.task): span for span in plan.timeline()}
    assert spans["steps    layer 0 → steps 0..2"].start == spans["steps    layer 0 ← steps 0..2"].start
    names = [str(need) for need in spans["input    layer 1 → steps 0..2"].task.needs]
    assert names == ["steps    layer 0 → steps 0..2", "steps    layer 0 ← steps 14..16"]
    assert spans["input    layer 1 → steps 8..10"].start < spans["steps    layer 0 → steps 14..16"].start


# ----------------------------------------------------------------------------------------------------- its results


def test_threads_and_their_timing_do_not_change_the_bits(engine):
    case = Case("gru", T=21, B=3, hidden=(33, 17, 20), directions=2, dropout=0.3)
    problem = make_problem(case)
    results = []
    for threads in (1, 2, 2, 4):
        engine.set_num_threads(threads)
        results.append(train(problem.layer("cpu", schedule="wavefront", seed=2), problem)[0])
    for values in results[1:]:
        assert_same_bits(values, results[0])


# ------------------------------------------------------------------------------------------------ what engines get


@pytest.mark.parametrize("options", ({}, {"batch_first": True}, {"dropout": 0.5, "batch_first": True}), ids=str)
def test_jobs_in_any_order_that_their_needs_allow_give_the_same_bits(monkeypatch, options):
    """Also the copies before and after the tasks: threads take any job that is ready, whatever its lane."""
    ran, case = [], Case("gru", T=6, B=3, hidden=(7, 33), directions=2, **options)

    def in_order_of(seed):
        def run_jobs(engine, make_jobs, key, arrays):
            jobs, done, order = make_jobs(), set(), random.Random(seed)
            runs = [job.bind() for job in jobs]
            while len(done) < len(jobs):
                ready = [n for n, job in enumerate(jobs) if n not in done and done.issuperset(job.needs)]
                chosen = order.choice(ready)
                runs[chosen]()
                done.add(chosen)
            ran.append(seed)

        return run_jobs

    problem = make_problem(case)
    first = train(problem.layer("cpu", schedule="wavefront", seed=3), problem)[0]
    assert_close(case, first, train(problem.layer("cpu", schedule="stepwise", seed=3), problem)[0])
    monkeypatch.setattr(cpu.CpuEngine, "records_jobs", True)
    for seed in range(6):
        monkeypatch.setattr(cpu.CpuEngine, "run_jobs", in_order_of(seed))
        assert_same_bits(train(problem.layer("cpu", schedule="wavefront", seed=3), problem)[0], first)
    assert set(ran) == set(range(6))


# --------------------------------------------------------------------------------------------------------- explanations
PASSES = (False, True)


@pytest.mark.parametrize("backward", PASSES)
def test_explanation_of_a_named_schedule(backward):
    problem = problem_of(hidden=(512, 512), dtype="float16", batch=64)
    explanation = explain(choose("persistent"), problem, backward)
    assert explanation.taken.schedule == "persistent" and explanation.why is None
    assert [option.schedule for option in explanation.others] == ["stepwise", "wavefront"]
    assert all(option.plan and option.microseconds is None for option in explanation.others)
    launches = planner.plan_launches(problem, problem.profile, backward)
    assert explanation.taken.launches == launches
    assert explanation.taken.microseconds == sum(launch.microseconds for launch in launches)
    text = str(explanation)
    assert text.startswith(f"persistent {'backward' if backward else 'forward'}: ")
    for launch in launches:
        assert launch.details in text


def test_explanation_of_a_refusal():
    problem = problem_of(hidden=(8192,))
    with pytest.raises(RuntimeError, match="does not fit"):
        explain(choose("persistent"), problem, False)
    explanation = explain(choose("stepwise"), problem, False)
    (refused,) = [option for option in explanation.others if option.schedule == "persistent"]
    assert refused.plan is None and "1024.0 MiB" in refused.reason
    assert "instead, persistent: cannot run it: lstm with hidden size 8192" in str(explanation)


def test_explanation_on_the_cpu_does_not_alarm():
    on_cpu = replace(problem_of(), engine="cpu", profile=None)
    text = str(explain(choose("auto"), on_cpu, False))
    assert "persistent is for GPUs" in text and "cannot" not in text


def test_long_plans_are_shortened():
    text = str(explain(choose("wavefront"), problem_of(hidden=(64,) * 4, steps=100), False))
    plan = choose("wavefront").plan_forward(problem_of(hidden=(64,) * 4, steps=100))
    assert f"... {len(plan.tasks) - 12} more" in text
    assert str(plan.tasks[0]) in text and str(plan.tasks[-1]) in text and len(text.splitlines()) < 20
