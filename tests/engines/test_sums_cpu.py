"""Sums over units and noise on the CPU engine: its steps against PyTorch's autograd in float64, and the draws against
another Philox."""

from itertools import pairwise

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from numbarnn.common.order import RESET, SKIP  # noqa: E402
from numbarnn.common.philox import noise_words  # noqa: E402
from numbarnn.engines.base import Job  # noqa: E402
from philox_reference import philox4x32  # noqa: E402
from step_buffers import backward_buffers, forward_buffers, with_arrays  # noqa: E402
from sum_cells import CENTRED, DRAWN, NOISE_CELLS, SUM_CELLS, SUM_STEPS  # noqa: E402

SMOOTH = {name: cell for name, cell in (SUM_CELLS | NOISE_CELLS).items() if cell is not DRAWN}
WORDS = noise_words(0x123456789ABCDEF, 3, 7)[2]
by_cell = pytest.mark.parametrize("cell", SMOOTH.values(), ids=SMOOTH)
by_direction = pytest.mark.parametrize("direction", (0, 1))
by_threads = pytest.mark.parametrize("threads", (1, 2, 3))


@pytest.fixture
def engine(cpu_on_threads):
    return cpu_on_threads


def buffers(cell, direction, save=True, **options):
    """As `forward_buffers`, with places for sums and noise."""
    b = forward_buffers(cell, direction, save=save, **options)
    (T, B, _), H, dtype = b.scratch.ax.shape, b.parameters.b_w.size // cell.num_gates, b.states.h.dtype
    slots = T if save else 1
    v = np.full((slots, B, cell.num_products * H), np.nan, dtype) if cell.num_products else None
    sums = np.full((slots, B, cell.num_sums), np.nan, dtype) if cell.num_sums else None
    return with_arrays(b, v=v, sums=sums, noise=WORDS.copy() if cell.noise and save else None)


def backward_of(forward, **options):
    """As `backward_buffers`, likewise."""
    b, cell = backward_buffers(forward, **options), forward.cell
    B, P = forward.states.h.shape[1], forward.parameters.R.shape[1]
    shapes = {"d_v": cell.num_products * P, "d_sums": cell.num_sums}
    scratch = {name: np.full((B, n), np.nan, b.gradients.dh.dtype) if n else None for name, n in shapes.items()}
    return with_arrays(b, **scratch)


def half(array, direction):
    return np.split(array, 2, axis=-1)[direction]


def run(engine, forward, cuts=None, spoiled=False):
    """Name -> result of a pass and, in training, of the backward pass after it."""
    cuts, d = cuts or (0, len(forward.scratch.ax)), forward.direction
    steps = engine.forward_steps(forward)
    for first, last in pairwise(cuts):
        steps(first, last)
    values = {"h": half(forward.states.h, d)[1:-1].copy()}
    if not forward.save:
        return values
    values["c"] = half(forward.states.c, d)[1:-1].copy()
    backward = backward_of(forward, spoiled=spoiled)
    steps = engine.backward_steps(backward)
    for first, last in pairwise(cuts):
        steps(first, last)
    G, A = forward.parameters.b_w.size, forward.parameters.b_r.size
    values |= {} if forward.states.m is None else {"dht": backward.gradients.dht}
    values |= {
        "dh": backward.gradients.dh,
        "dc": backward.gradients.dc,
        "dax": backward.gradients.dax[..., :G],
        "dah": backward.gradients.dah[..., :A],
    }
    return values | ({} if forward.parameters.per_unit is None else {"d_per_unit": backward.gradients.d_per_unit})


# ------------------------------------------------------------------------------------------------ what is expected
def drawn_numbers(noise, words, T, B, H):
    """One (T, B, H) for each of the noise, as `noise_words` says it."""
    numbers, of_kind = [], {True: 0, False: 0}
    for one in noise:
        k = of_kind[one.each_step]
        of_kind[one.each_step] += 1
        counter = np.empty((T, B, H, 4), np.uint32)
        counter[..., 0] = np.arange(B)[:, None] * H + np.arange(H)
        counter[..., 1] = np.arange(T)[:, None, None] if one.each_step else 2**32 - 1
        counter[..., 2], counter[..., 3] = int(words[2]) + k // 4, int(words[3])
        word = philox4x32(counter, words[:2])[..., k % 4]
        numbers.append(np.where(word < round(one.rate * 2**32), 0.0, one.kept))
    return numbers


def expected(forward, backward=None):
    """What `run` returns, by autograd; of a forward pass before its first step."""
    cell, d = forward.cell, forward.direction
    (T, B, _), H, A = (
        forward.scratch.ax.shape,
        forward.parameters.b_w.size // cell.num_gates,
        forward.parameters.b_r.size,
    )

    def tensor(array, grad=True):
        return torch.tensor(np.nan_to_num(array.astype(np.float64)), requires_grad=grad)

    ax = tensor(forward.scratch.ax[..., : forward.parameters.b_w.size])
    R, b_w, b_r = (
        tensor(array, False) for array in (forward.parameters.R, forward.parameters.b_w, forward.parameters.b_r)
    )
    slot = (0 if d == 0 else T + 1) % len(forward.states.c)
    start = [
        half(forward.states.h, d)[-1 if d else 0],
        *np.split(half(forward.states.c, d)[slot], max(1, cell.num_private), axis=1),
    ]
    initial = states = [tensor(part) for part in start[: cell.num_states]]
    ah_added = torch.zeros((T, B, A), dtype=torch.float64, requires_grad=True)
    W_hr = None if forward.states.m is None else tensor(forward.parameters.W_hr, False)
    h_added = torch.zeros((T, *initial[0].shape), dtype=torch.float64, requires_grad=True)
    per_unit = np.zeros(0) if forward.parameters.per_unit is None else forward.parameters.per_unit
    per_unit = tensor(np.broadcast_to(per_unit, (T, B, per_unit.size)))
    if forward.save:
        noise = [tensor(array, False) for array in drawn_numbers(cell.noise, WORDS, T, B, H)]
    else:
        noise = [torch.full((T, B, H), one.mean, dtype=torch.float64) for one in cell.noise]
    step_mask = (
        torch.zeros((T, B), dtype=torch.uint8)
        if forward.options.step_mask is None
        else torch.tensor(forward.options.step_mask[1:-1])
    )
    gates, outputs = [slice(g * H, (g + 1) * H) for g in range(cell.num_ah)], [None] * T
    for t in reversed(range(T)) if d else range(T):
        product = (
            lambda g, t=t: ax[t][:, gates[g]] + b_w[gates[g]],
            lambda g, vector, t=t: vector @ R[gates[g]].T + b_r[gates[g]] + ah_added[t][:, gates[g]],
        )
        cut, skip = (step_mask[t] == RESET)[:, None], (step_mask[t] == SKIP)[:, None]
        before = [torch.where(cut, 0.0, state) for state in states]
        own = per_unit[t].split(H, dim=1) if cell.per_unit else ()
        new = SUM_STEPS[cell.name](product, before, own, [one[t] for one in noise])
        if W_hr is not None:
            new = new[0] @ W_hr.T + h_added[t], *new[1:]
        states = [torch.where(skip, *pair) for pair in zip(states, new, strict=True)]
        outputs[t] = states
    values = {"h": torch.stack([output[0] for output in outputs])}
    if not forward.save:
        return {"h": values["h"].detach().numpy()}
    private = [torch.cat(output[1:], dim=1) if output[1:] else torch.empty((B, 0)) for output in outputs]
    values["c"] = torch.stack(private)
    weights = backward_of(forward)
    dy = tensor(half(weights.gradients.dy, d), False) * (step_mask != SKIP)[..., None]
    loss = (values["h"] * dy).sum()
    finals = [tensor(weights.gradients.dh, False), *tensor(weights.gradients.dc, False).split(H, dim=1)]
    sum((state * part).sum() for state, part in zip(states, finals, strict=False)).add(loss).backward()
    gradients = [state.grad if state.grad is not None else torch.zeros_like(state) for state in initial]
    values |= {"dh": gradients[0], "dc": torch.cat([torch.empty((B, 0)), *gradients[1:]], dim=1)}
    values |= {"dax": ax.grad, "dah": ah_added.grad}
    if cell.per_unit:
        values["d_per_unit"] = per_unit.grad
    if W_hr is not None:
        values["dht"] = h_added.grad
    return {name: value.detach().numpy() for name, value in values.items()}


def check(engine, cell, direction, dtype="float64", **options):
    """Training and inference against what is expected. Each step amplifies the rounding of those before by the slopes
    of products and norms, here a few hundred in all."""
    for save in (True, False):
        forward = buffers(cell, direction, save, dtype=dtype, **options)
        wanted = expected(forward)
        found = run(engine, forward, spoiled=options.get("spoiled", False))
        if save and forward.options.step_mask is not None:  # what goes beyond a sequence's beginning, passes leave out
            begins = forward.options.step_mask[1 if direction == 0 else -2] == RESET
            for name in ("dh", "dc"):
                found[name] = np.where(begins[:, None], 0, found[name])
        assert found.keys() == wanted.keys()
        for name, value in found.items():
            assert np.isfinite(value).all(), name
            scale = max(1.0, np.abs(wanted[name]).max(initial=0))
            error = np.abs(value - wanted[name]).max(initial=0) / scale
            assert error < 300 * np.finfo(dtype).eps, f"{name}, save={save}: {error}"


# ------------------------------------------------------------------------------------------------------ sums, noise
@by_direction
@pytest.mark.parametrize("T, B, H, dtype", [
    (1, 1, 1, "float64"), (7, 3, 7, "float32"), (5, 1, 33, "float32"), (7, 3, 33, "float64"), (1, 4, 130, "float64"),
    (4, 2, 130, "float32"), (3, 2, 600, "float64"),
])  # fmt: skip
@by_cell
def test_agrees_with_autograd(engine, cell, T, B, H, dtype, direction):
    engine.set_num_threads(2)
    check(engine, cell, direction, dtype, T=T, B=B, H=H)


@by_direction
@by_threads
@by_cell
def test_lengths_and_resets(engine, cell, threads, direction):
    engine.set_num_threads(threads)
    check(engine, cell, direction, T=9, B=4, H=50, masked=True)
    check(engine, cell, direction, "float32", T=9, B=4, H=50, masked=True, spoiled=True)


@by_direction
@by_threads
def test_sums_before_a_projection(engine, threads, direction):
    engine.set_num_threads(threads)
    check(engine, CENTRED, direction, T=9, B=4, H=60, projection=50, masked=True)


@by_cell
def test_threads_without_units_take_part(engine, cell, monkeypatch):
    """Seven units are one slice."""
    engine.set_num_threads(3)
    monkeypatch.setattr(type(engine), "_threads", lambda self, work, parts: 3)
    check(engine, cell, 0, H=7)


@by_direction
@by_threads
@by_cell
def test_the_same_bits_each_time_and_in_pieces(engine, cell, threads, direction):
    engine.set_num_threads(threads)
    options = dict(T=9, B=3, H=130, masked=True)
    first = run(engine, buffers(cell, direction, **options))
    for cuts in [None] * 5 + [(0, 2, 3, 9)] * 2:
        for name, value in run(engine, buffers(cell, direction, **options), cuts).items():
            np.testing.assert_array_equal(value, first[name], err_msg=name)


@pytest.mark.parametrize("cell", SUM_CELLS.values(), ids=SUM_CELLS)
def test_in_a_job_one_thread_adds_up_alone(engine, cell, monkeypatch):
    """What the others would have written is not read."""
    parts_of = type(engine)._parts

    def spoiled_parts(*arguments):
        parts = parts_of(*arguments)
        parts[...] = np.nan
        return parts

    monkeypatch.setattr(type(engine), "_parts", spoiled_parts)
    found = []
    for threads in (1, 2):
        engine.set_num_threads(threads)
        forward = buffers(cell, 0, H=40)
        engine.run_jobs(lambda f=forward: [Job(0, (), lambda: lambda: found.append(run(engine, f)))], None, [])
    for name, value in found[1].items():
        np.testing.assert_array_equal(value, found[0][name], err_msg=name)


@by_cell
def test_gradients_are_those_of_finite_differences(engine, cell):
    """Along a random direction of x Wᵀ, the states, vectors, and b_r, which says what dah is."""
    forward = buffers(cell, 0, dtype="float64", H=20)
    weights, changed = backward_of(forward), ("ax", "h", "c", "b_r", "per_unit")
    rng = np.random.default_rng(0)
    groups = forward.scratch, forward.states, forward.parameters
    before = {name: value for group in groups for name, value in group._asdict().items() if name in changed}
    before = {name: value for name, value in before.items() if value is not None}
    steps = {name: rng.standard_normal(value.shape) for name, value in before.items()}

    def loss(size):
        arrays = {name: before[name] + size * step for name, step in steps.items()}
        moved = with_arrays(forward, gates=arrays["ax"], **arrays)
        found = run(engine, moved)
        total = (found["h"] * half(weights.gradients.dy, 0)).sum() + (found["h"][-1] * weights.gradients.dh).sum()
        return total + (found["c"][-1] * weights.gradients.dc).sum()

    size = 1e-5
    slope = (loss(size) - loss(-size)) / (2 * size)
    found = run(engine, buffers(cell, 0, dtype="float64", H=20))
    parts = {
        "ax": (found["dax"], steps["ax"][..., : forward.parameters.b_w.size]),
        "h": (found["dh"], half(steps["h"], 0)[0]),
        "c": (found["dc"], half(steps["c"], 0)[0]),
        "b_r": (found["dah"], steps["b_r"]),
    }
    if cell.per_unit:
        parts["per_unit"] = found["d_per_unit"], steps["per_unit"]
    np.testing.assert_allclose(sum((d * step).sum() for d, step in parts.values()), slope, rtol=1e-7)


@by_threads
@pytest.mark.parametrize("H", (100, 1000, 5000))
def test_sums_are_added_up_in_pairs(engine, H, threads):
    """Of positive terms, none of which cancel: within two units in the last place, where thousands of terms one after
    another lose ten."""
    engine.set_num_threads(threads)
    rng = np.random.default_rng(0)
    forward = buffers(CENTRED, 0, T=1, B=64, H=16)
    forward = with_arrays(
        forward, h=np.zeros((3, 64, 2 * H), np.float32), ax=rng.random((1, 64, H), np.float32),
        ah=np.empty((64, H), np.float32), R=np.zeros((H, H), np.float32), b_w=np.zeros(H, np.float32),
        b_r=np.zeros(H, np.float32),
    )  # fmt: skip
    exact = forward.scratch.ax.astype(np.float64).sum(axis=2)[..., None]
    engine.forward_steps(forward)(0, 1)
    assert np.abs(forward.saved.sums / exact - 1).max() < 2 * np.finfo("float32").eps


@by_direction
@by_threads
def test_draws_are_those_of_another_philox(engine, threads, direction):
    """In forward and in backward, each number by itself; in inference the mean."""
    engine.set_num_threads(threads)
    T, B, H = 5, 3, 67
    forward = buffers(DRAWN, direction, T=T, B=B, H=H)
    found, weights = run(engine, forward), backward_of(forward)
    numbers = drawn_numbers(DRAWN.noise, WORDS, T, B, H)
    drawn = sum(2**k * n for k, n in enumerate(numbers))
    assert len(np.unique(drawn)) > 64
    np.testing.assert_array_equal(found["h"], drawn)
    d_y = half(weights.gradients.dy, direction).copy()
    d_y[0 if direction else -1] += weights.gradients.dh
    np.testing.assert_array_equal(found["dax"], drawn.astype(np.float32) * d_y)
    inferred = run(engine, buffers(DRAWN, direction, save=False, T=T, B=B, H=H))["h"]
    np.testing.assert_array_equal(inferred, 0.5 * (2**7 - 1))


def test_rates_are_right(engine):
    """Of n draws, within five standard deviations; numbers for all steps are fewer."""
    T, B, H = 40, 8, 300
    h = run(engine, buffers(DRAWN, 0, T=T, B=B, H=H))["h"].astype(int)
    for k, one in enumerate(DRAWN.noise):
        kept = (h >> k) & 1
        if not one.each_step:
            assert (kept == kept[0]).all()
            kept = kept[0]
        limit = 5 * (one.rate * (1 - one.rate) / kept.size) ** 0.5
        assert abs(kept.mean() - (1 - one.rate)) < limit
