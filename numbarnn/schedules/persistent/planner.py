"""The planner of the persistent schedule: which launches run a problem and how their layers are tiled, or why it
cannot.

It is a pure function of a `Problem` and a `DeviceProfile`. A launch runs consecutive layers, as many as fit on the
device together (or fewer, if that should be faster). Each of its blocks owns the same number of units of one layer and
direction. Estimates are of one step: bytes over bandwidth, multiply-adds over rate, and the exchange; the fitted
numbers, and the records behind them, are in `numbarnn.schedules.calibration`.
"""

from dataclasses import replace
from functools import lru_cache, partial
from math import ceil

from numbarnn.common.precision import is_half
from numbarnn.kernels.persistent.tile import N8
from numbarnn.schedules.persistent import tilings
from numbarnn.schedules.persistent.costs import estimate_of, tiling_us
from numbarnn.schedules.persistent.residence import with_n8
from numbarnn.schedules.persistent.tilings import DoesNotFit, best_tiling, columns_of, room_of, sizes_of
from numbarnn.schedules.plan import Task
from numbarnn.schedules.products import product_us

# Most sets of 8 sequences at once if tensor cores' weights are in shared memory: each turn loads all of them.
MOST_N8 = 4
# Blocks multiply the first layer's input themselves only if that should save this share of the time of the launch and
# of the product before it. Never measured on a device.
LEAST_GAIN = 0.05


def variant(problem, launch):
    """Return the options of the launch's kernel, (inputs, drops, masked, exact), see `make_forward`."""
    inputs, exact = len(launch.layer_range) > 1, problem.is_segment and problem.dtype != problem.state_dtype
    return inputs, inputs and problem.dropping, problem.masked, exact


@lru_cache(maxsize=256)
def plan_launches(problem, profile, backward):
    """Return the launches of a pass, in their order.

    Raises:
        DoesNotFit: not even one of its layers fits; says which, with the numbers.
    """
    if not profile.cooperative:
        raise DoesNotFit(f"{profile.name} has no cooperative launches, which persistent kernels need")
    if problem.dtype == "float64":
        raise DoesNotFit(
            "persistent kernels compute in float32, float16 and bfloat16, not in float64: use schedule='wavefront' or "
            "'stepwise'"
        )
    if is_half(problem.dtype) and not profile.tensor_cores:
        raise DoesNotFit(
            f"persistent kernels multiply {problem.dtype} by tensor cores of compute capability 8.0 or newer, and "
            f"{profile.name} has {'.'.join(map(str, profile.compute_capability))}: use schedule='wavefront' or "
            f"'stepwise'"
        )
    tiling = partial(_tiling, sizes_of(problem), profile, backward)

    def us(launch):
        return tiling_us(launch.chain_us, problem.steps, launch.last - launch.first, problem.directions)

    plan, first, end = [], 0, problem.layers
    while first < end:
        taken, spent = first + 1, us(tiling(first, first + 1))
        for last in range(first + 2, end + 1):
            try:
                together = tiling(first, last)
            except DoesNotFit:
                break
            spent += us(tiling(last - 1, last))
            if us(together) < spent:
                taken, spent = last, us(together)
        best = _best_launch(problem, profile, first, taken, backward)
        plan.append(best if backward else _with_input(problem, profile, best))
        first = taken
    return tuple(reversed(plan)) if backward else tuple(plan)


def _best_launch(problem, profile, first, last, backward, given=False):
    """Return the launch of the layers [first, last) with the tiling that should be fastest, and its estimate.

    Args:
        given: see `Tile`.
    """
    sizes, layers = sizes_of(problem), (first, last)
    if given:
        sizes = sizes._replace(input_size=problem.input_size)
    else:
        layers = _alike(problem, first, last)
    launch = _estimated(sizes, profile, backward, *layers, given)
    return replace(launch, first=first, last=last, steps=problem.steps)


def _alike(problem, first, last):
    """Return (first, last) of layers that are tiled like [first, last): (0, last - first) if all layers have one size,
    so that the caches hit."""
    return (0, last - first) if len(set(problem.hidden_sizes)) == 1 else (first, last)


def _with_input(problem, profile, launch):
    """Return the Launch, or one whose first layer multiplies its input itself, if that saves `LEAST_GAIN` of the time.

    It saves the product before the launch, but each block of the layer reads the input at every step. TF32 tiles are
    left as they are, because no times of their products before a launch are known.
    """
    products = [Task("input", launch.first, direction, 0, problem.steps) for direction in range(problem.directions)]
    on_device = problem if problem.profile is profile else replace(problem, profile=profile)
    spared = sum(product_us(task, on_device) for task in products)
    limit = (1 - LEAST_GAIN) * (launch.microseconds + spared)
    by_tf32 = launch.tile.math in ("tf32", "tf32x3")
    if by_tf32 or launch.microseconds > limit or not _may_multiply_input(problem, launch.first):
        return launch
    try:
        other = _best_launch(problem, profile, launch.first, launch.last, False, given=True)
    except DoesNotFit:
        return launch
    return other if other.microseconds < limit else launch


def _may_multiply_input(problem, layer):
    """Return whether blocks of a launch's first layer may multiply its input themselves.

    They may under three conditions. The engine is CUDA, because there are estimates of times for no other. The input
    product is one product with W. The call has no segments, whose results must have the same bits as all steps at once.
    """
    whole = layer > 0 or problem.input_mode == "linear"
    segments = problem.is_segment or problem.has_checkpoints
    return problem.engine == "cuda" and whole and not problem.copied_gates[layer] and not segments


@lru_cache(maxsize=1024)
def _estimated(sizes, profile, backward, first, last, given):
    """Return `_best_launch`'s launch without the layers' numbers and T, which do not change its tiling."""
    tiled = _tiling(sizes, profile, backward, first, last, given)
    columns = columns_of(sizes, first, last, backward, tiled.tile)
    launches = (tiled, *_with_fewer_turns(sizes, profile, tiled))
    estimated = [replace(one, estimate=estimate_of(sizes, profile, one, columns)) for one in launches]
    return min(estimated, key=lambda launch: launch.estimate.step)


def _tiling(sizes, profile, backward, first, last, given=False):
    """Return the cached `best_tiling`."""
    layers = (first, last) if given else _alike(sizes, first, last)
    result = _tiling_or_refusal(sizes, profile, *layers, backward, given)
    if isinstance(result, DoesNotFit):
        raise DoesNotFit(*result.args)
    return result


def _with_fewer_turns(problem, profile, launch):
    """Return the Launch with more sequences at once, if turns load weights from shared memory, and memory allows.
    Its tiling was chosen before, for at most two sets of sequences: the model that compares tilings was never tested
    with more."""
    most, tile, cell = min(MOST_N8, ceil(launch.sequences / N8)), launch.tile, problem.cell
    # Found by compiling: registers are spilled by projections (sm_80), and forward by warps that do not load all of
    # their chunks at once (sm_90); several layers forward leave a stack frame (sm_100).
    several = launch.last > launch.first + 1 and not launch.backward
    if tile.math != "mma" or tile.resident != "shared" or tile.projects or several:
        return
    # A thread has more pairs, too.
    of_pair = cell.num_per_unit + cell.num_saved + 2 * cell.num_states + cell.num_products
    room = room_of(profile, launch.sequences, problem, launch.backward, of_pair)
    for n8 in range(tile.n8 + 1, most + 1):
        more = with_n8(tile, n8, room)
        if more is not None and (launch.backward or more.groups == 1):
            yield replace(launch, tile=more, shared_bytes=more.shared_bytes(launch.sequences, cell.num_states))


@lru_cache(maxsize=1024)
def _tiling_or_refusal(sizes, profile, first, last, backward, given):
    """Return `best_tiling`, or the DoesNotFit that it raised."""
    try:
        return best_tiling(sizes, profile, first, last, backward, given)
    except DoesNotFit as refusal:
        return refusal


def forget():
    """Forget all cached plans, because what they depend on has changed."""
    for remembered in (plan_launches, _estimated, _tiling_or_refusal):
        remembered.cache_clear()
    tilings.forget()
