"""Wrong persistent kernels are found out in the simulator, in every order of threads: each synchronisation taken away,
each number of the tables moved, and more. What waits in vain ends, with an error that says where.

Each mutant says how it must show: a mutant that does not even run is no proof that anything would be found.
"""

import re
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pytest
from numba import cuda
from persistent_setup import few_threads

from altered import altered
from cases import Case
from comparing import assert_close
from grouped_tiles import GroupedTile
from kernel_mutants import mutant, written_anew
from numbarnn import engines
from numbarnn.cuda import ptx, simulator
from numbarnn.engines.gpu import launches, profiles
from numbarnn.kernels.persistent import (
    backward,
    ends,
    exchange,
    fma,
    forward,
    mma,
    weights,
    within_backward,
    within_forward,
)
from numbarnn.kernels.persistent.columns import INPUT, RECURRENT, WARP
from problems import make_problem
from running import infer, train_and_draw

PATIENCE = 1000  # turns in vain before the simulator reports a livelock: more than a kernel here waits


@pytest.fixture(autouse=True)
def small(monkeypatch):
    return few_threads(monkeypatch)


BOTH_KERNELS = pytest.mark.parametrize(
    "module, factory", [(forward, "make_forward"), (backward, "make_backward")], ids=("forward", "backward")
)


@pytest.fixture(autouse=True, params=[0, *(pytest.param(seed, marks=pytest.mark.full) for seed in (1, 2))])
def order(request, monkeypatch):
    """The order in which threads take turns; others if `full`."""
    monkeypatch.setitem(ORDER, "seed", request.param)


TWO_LAYERS = Case("lstm", T=3, B=2, hidden=(5, 5))
ORDER = {}


class Symptom(NamedTuple):
    """How a wrong kernel shows: an exception, and how what it says begins."""

    name: str
    error: type
    message: str

    def __str__(self):
        return self.name


WRONG = Symptom("wrong numbers", AssertionError, r"[^\n]*: errors above [\d.]+ eps: ")
LIVELOCK = Symptom("livelock", RuntimeError, r"kernel \w+: livelock, memory did not change ")
OUTSIDE = Symptom("outside", RuntimeError, r"kernel \w+: block .*, thread .* raised IndexError: element -?\d+ of \d+ ")
RIGHT = None  # it does not show


def symptom(error):
    """The Symptom that an exception is; any other is raised."""
    for one in (WRONG, LIVELOCK, OUTSIDE):
        if type(error) is one.error and re.match(one.message, str(error)):
            return one
    raise AssertionError(f"a mutant that does not do what it should: {error}") from error


def symptom_of(case):
    """How a kernel shows that it is wrong, or RIGHT."""
    problem = make_problem(case)
    layer = problem.layer("sim", schedule="persistent")
    try:
        with simulator.schedule(ORDER["seed"]), np.errstate(all="ignore"):
            found, drawn = train_and_draw(layer, problem)
            assert_close(case, found, problem.expected(drawn))
    except (AssertionError, RuntimeError) as error:
        return symptom(error)
    return RIGHT


def assert_found(case, expected):
    """It shows, and as it should."""
    assert str(symptom_of(case)) == str(expected)


OF_FIRST_WARP = "(cuda.threadIdx.x // 32 == 0) * (1 - row[BLOCK.reads_gates])"


def slow(source):
    """An edit that lets the first warp of the layer that waits for another one come late to the cell: still right."""
    late = f"for _ in range(40 * {OF_FIRST_WARP}):\n" + " " * 16 + "exchange.ptx.sleep(0)\n"
    text, places = re.subn(r" *# \d\. The cell, for the block's units\n", " " * 12 + late, source)
    assert places == 1
    return text


def slow_start(source):
    """Likewise, that begins when the others multiply: still right."""
    first = "        for at in range(cuda.threadIdx.x, WARPS * BETWEEN_WARPS, THREADS):\n"
    late = f"        for _ in range(150 * {OF_FIRST_WARP}):\n"
    late += "            exchange.ptx.sleep(0)\n"
    return replaced(first, late + first)(source)


def without_barrier(number):
    """An edit that takes a barrier out of the loop over the steps."""

    def edit(source):
        before, loop, steps = source.partition("while step <")
        parts = steps.split("cuda.syncthreads()")
        assert len(parts) == 3, "other barriers than those of which mutants are made here"
        parts[number : number + 2] = [parts[number] + "pass" + parts[number + 1]]
        return before + loop + "cuda.syncthreads()".join(parts)

    return edit


def without_barrier_before_the_loop(source):
    """Of the source with a slow start: who is late sets the others' sums to zero."""
    before, loop, steps = source.partition("        while step <")
    text, places = re.subn(r"        cuda\.syncthreads\(\)\n(?=(?:        if keeps_biases:\n.*\n)?\n$)", "", before)
    assert places == 1
    return text + loop + steps


def replaced(old, new, count=1):
    """An edit that replaces a text that stands `count` times."""

    def edit(source):
        assert source.count(old) == count, f"{old!r} stands {source.count(old)} times"
        return source.replace(old, new)

    return edit


KERNEL_MUTANTS = {
    "without the barrier after the products": without_barrier(0),
    "without the barrier after the cell": lambda source: without_barrier(1)(slow(source)),
    "without the barrier before the loop": lambda source: without_barrier_before_the_loop(slow_start(source)),
}


@pytest.mark.parametrize("edit", KERNEL_MUTANTS.values(), ids=KERNEL_MUTANTS)
@BOTH_KERNELS
def test_a_wrong_kernel_is_found(module, factory, edit):
    with mutant(module, factory, written_anew(module, factory, edit)):
        assert_found(TWO_LAYERS, WRONG)


SUM_MUTANTS = {"all warps' sums belong to the state before": "working)", "the last warp's sum forgotten": "split - 1)"}


@pytest.mark.parametrize("end", SUM_MUTANTS.values(), ids=SUM_MUTANTS)
@pytest.mark.parametrize(
    "module, factory",
    [(within_forward, "make_gates"), (within_backward, "_make_carried")],
    ids=("forward", "backward"),
)
def test_wrong_sums_of_warps_are_found(module, factory, end):
    with mutant(module, factory, written_anew(module, factory, replaced(" 0, role.split)", f" 0, role.{end}"))):
        assert_found(TWO_LAYERS, WRONG)


@pytest.mark.parametrize("edit", (slow, slow_start))
@BOTH_KERNELS
def test_slow_threads_do_no_harm(module, factory, edit):
    with mutant(module, factory, written_anew(module, factory, edit)):
        assert symptom_of(TWO_LAYERS) is RIGHT


STATE = "whole(widen(stored), new_state[1:])"
# Of the LSTM's equations none uses h, and the GRU has no c.
FORWARD_MUTANTS = {
    "takes x W of the step before": (
        "lstm", WRONG, replaced("t, b0)\n                pre", "t - move, b0)\n                pre")
    ),
    "stores the state of the step before": (
        "lstm", LIVELOCK, replaced("array, position, stored", "array, position - batch * m_rows.width, stored")
    ),
    "drops out by the next unit's mask": (
        "lstm", WRONG, replaced("dropout_factor(position,", "dropout_factor(position + 1,")
    ),
    "publishes before dropping out": ("lstm", WRONG, replaced("narrow(widen(stored) * factor)", "stored")),
    "keeps the first h": ("gru", WRONG, replaced(STATE, "whole(arguments[2][0], new_state[1:])")),
    "writes c to the slot of the step before": (
        "lstm", WRONG, replaced("((t + 1) * batch + b) * c_rows", "(t * batch + b) * c_rows")
    ),
    "keeps the first c": ("lstm", WRONG, replaced(STATE, "whole(widen(stored), arguments[2][1:])")),
}  # fmt: skip


@pytest.mark.parametrize("cell, shows, edit", FORWARD_MUTANTS.values(), ids=FORWARD_MUTANTS)
def test_a_wrong_forward_kernel_is_found(cell, shows, edit):
    with mutant(forward, "make_forward", written_anew(forward, "make_forward", edit)):
        assert_found(Case(cell, T=3, B=2, hidden=(5, 5), dropout=0.5), shows)


STATE_MUTANTS = {
    "publishes no initial state": (
        "gru", LIVELOCK, "make_begin", replaced("narrow(own_h), valid and", "narrow(own_h), False and")
    ),
    "publishes the initial state of the next sequence": (
        "gru", WRONG, "make_begin", replaced("slot_h * owned.batch + b)", "slot_h * owned.batch + 1 - b)")
    ),
    "takes zero for the first h": ("gru", WRONG, "make_load_first", replaced("& HAS_H != 0", "& HAS_H == 7")),
    "takes zero for the first c": ("lstm", WRONG, "make_load_first", replaced("& HAS_C != 0", "& HAS_C == 7")),
    "leaves no initial c for backward": ("lstm", WRONG, "make_begin", replaced("if keeps:", "if False:")),
    "writes no final h": ("lstm", WRONG, "make_end", replaced("in range(cuda.threadIdx.x,", "in range(8,")),
    "writes h for the final c": ("lstm", WRONG, "make_end", replaced("owned.begin, pair) + 1", "owned.begin, pair)")),
    "writes the last c of another direction": (
        "lstm", WRONG, "make_store_last", replaced("place, b, N * owned.hidden", "(0, place[1]), b, N * owned.hidden")
    ),
}  # fmt: skip


@pytest.mark.parametrize("cell, shows, factory, edit", STATE_MUTANTS.values(), ids=STATE_MUTANTS)
def test_wrong_initial_and_final_states_are_found(cell, shows, factory, edit):
    with mutant(ends, factory, written_anew(ends, factory, edit)):
        assert_found(Case(cell, T=3, B=2, hidden=(5,), directions=2), shows)


def test_a_final_state_written_before_it_is_known_is_found():
    """Before the last step in place of after it."""
    end, turn = "        if timed_out[0] == 0:\n            end_states(", "            turn = Turn(step, t, b0)\n"

    def edit(source):
        before, last = source.split(end)
        call, rest = last.split("\n", 1)
        early = f"            if step == steps - 1:\n                end_states({call}\n"
        return replaced(turn, early + turn)(before) + rest

    with mutant(forward, "make_forward", written_anew(forward, "make_forward", edit)):
        assert_found(Case("lstm", T=3, B=2, hidden=(5,)), WRONG)


BACKWARD_MUTANTS = {
    "carries no gradient to the initial state": (
        backward, "make_backward", replaced("while step <= steps:", "while step < steps:")
    ),
    "publishes the other gradient": (backward, "make_backward", replaced("hidden, d_ah, valid", "hidden, d_ax, valid")),
    "no gradient from above": (
        within_backward, "_make_output",
        replaced("        if inputs and not", "        output = 0\n        if False and not")
    ),
    "no dropout of the gradient": (within_backward, "_make_output", replaced("if drops and", "if False and")),
}  # fmt: skip


@pytest.mark.parametrize("module, factory, edit", BACKWARD_MUTANTS.values(), ids=BACKWARD_MUTANTS)
def test_a_wrong_backward_kernel_is_found(module, factory, edit):
    with mutant(module, factory, written_anew(module, factory, edit)):
        assert_found(Case("gru", T=3, B=2, hidden=(5, 5), dropout=0.5), WRONG)


def test_the_state_before_a_step_taken_for_the_one_after_is_found():
    edit = replaced("slot = t + 2 * direction", "slot = t + 1")
    with mutant(backward, "_make_fetch_step", written_anew(backward, "_make_fetch_step", edit)):
        assert_found(Case("gru", T=3, B=2, hidden=(5, 5), dropout=0.5), WRONG)


def test_a_gradient_of_an_initial_state_that_counted_as_zero_is_found():
    with mutant(
        backward, "make_backward", written_anew(backward, "make_backward", replaced("elif masked:", "elif 0:"))
    ):
        assert_found(Case("lstm", T=3, B=3, hidden=(5,), resets=True), WRONG)


def test_a_kernel_that_does_not_run_is_not_taken_for_a_mutant_that_was_found():
    unknown_name = replaced("while step <= steps:", "while step <= stepz:")
    with mutant(backward, "make_backward", written_anew(backward, "make_backward", unknown_name)):
        with pytest.raises(AssertionError, match=r"does not do what it should: .* NameError: name 'stepz'"):
            assert_found(Case("rnn_tanh", T=1, B=1, hidden=(5,)), WRONG)


# ------------------------------------------------------------------------------------------ several groups of chunks
MMA = GroupedTile(Case("rnn_tanh", T=2, B=2, hidden=(72,), dtype="float16"), "mma", "registers", 36)
MMA_SHARED = replace(MMA, resident="shared")
SPLIT = GroupedTile(Case("rnn_tanh", T=2, B=2, hidden=(40,)), "tf32x3", "registers", 20)
FMA = GroupedTile(Case("rnn_tanh", T=2, B=2, hidden=(40,)), "fma", "shared", 20)
FMA_REGISTERS = replace(FMA, resident="registers")
WEIGHTS, FMA_WEIGHTS = "_make_mma_group(tile, group * tile.gathered + chunk,", "skipped, unrolled = group * columns,"
FIRST_WEIGHTS = replaced(WEIGHTS, "_make_mma_group(tile, chunk,")
FIRST_COLUMNS = replaced("in_simulator = group * tile.gathered *", "in_simulator = 0 *")
BACKWARD = "(tile.unit_biases == 0)"
STAGE, SYNC = "        stage(thread, sums)\n", "        cuda.syncwarp()\n"
GATHERED = "gather_and_stage(thread, role, turn, sums)\n"
GROUP_MUTANTS = {
    "the weights of the first group, mma from registers": (MMA, mma, "_make_step", FIRST_WEIGHTS),
    "the weights of the first group, mma from shared": (MMA_SHARED, mma, "_make_step", FIRST_WEIGHTS),
    "the weights of the first group, fma from shared": (
        FMA, fma, "_make_fma_group", replaced(FMA_WEIGHTS, "skipped, unrolled = 0,")
    ),
    "backward the weights of the first group, mma": (
        MMA, mma, "_make_step",
        replaced(WEIGHTS, f"_make_mma_group(tile, (0 if {BACKWARD} else group * tile.gathered) + chunk,"),
    ),
    "backward the weights of the first group, fma": (
        FMA, fma, "_make_fma_group", replaced(FMA_WEIGHTS, f"skipped, unrolled = 0 if {BACKWARD} else group * columns,")
    ),
    "staged in the place of the first group, fma from registers": (
        FMA_REGISTERS, fma, "_make_stage", replaced("skipped = group * gathered * chunk_elements", "skipped = 0")
    ),
    "the columns of the first group, mma": (MMA, exchange, "make_look", FIRST_COLUMNS),
    "the columns of the first group, fma": (FMA, exchange, "make_look", FIRST_COLUMNS),
    "all groups taken from the place of the first one": (
        MMA, mma, "_make_step", replaced("tile.place_of(group) + chunk", "chunk")
    ),
    "a group staged while other lanes read the last one": (
        FMA, fma, "_make_fma_group",
        replaced("        cuda.syncwarp()  # other lanes may still read what was staged before\n", ""),
    ),
    "read before other lanes have staged, fma from shared": (
        FMA, fma, "_make_fma_group", replaced(STAGE + SYNC, STAGE)
    ),
    "read before other lanes have staged, fma from registers": (
        FMA_REGISTERS, fma, "_make_step_from_registers", replaced(GATHERED + SYNC, GATHERED)
    ),
    "sums of the weights' rows in forward's order, backward, mma": (
        MMA, mma, "_make_step", replaced("ptx.store_shared_pair, tile.backward", "ptx.store_shared_pair, False")
    ),
    "the weights of two units exchanged, backward, mma": (
        MMA, weights, "_make_two_columns",
        replaced("return lower(a, b) & mask, upper(a, b) & mask", "return upper(a, b) & mask, lower(a, b) & mask")
    ),
    "the weights of two columns exchanged, backward, mma": (
        MMA_SHARED, weights, "_make_two_columns", replaced("a, b = pair(", "b, a = pair(")
    ),
    "the words of a chunk's halves exchanged, mma": (
        MMA, mma, "_make_two_fragments", replaced("(a, e, b, f), (c, g, d, h)", "(c, g, d, h), (a, e, b, f)")
    ),
    "the next column's weights for a column's, backward, fma from registers": (
        FMA_REGISTERS, fma, "_make_piece_load",
        replaced("first_row + r, first_column + k", "first_row + r, first_column")
    ),
    "another column's weights for a column's, fma from shared": (
        FMA, fma, "_make_load_to_shared", replaced("role.warp, row, column)", "role.warp, row, column ^ 4)")
    ),
    "what TF32 loses of the weights left out": (
        SPLIT, mma, "_make_split_group",
        replaced("mma(small, column, (zero, zero, zero, zero))", "(zero, zero, zero, zero)")
    ),
    "what TF32 loses of what is multiplied left out": (
        SPLIT, mma, "_make_split_group", replaced("mma(large, (operand[n, 2], operand[n, 3]), found)", "found")
    ),
}  # fmt: skip


@pytest.mark.parametrize("tile, module, factory, edit", GROUP_MUTANTS.values(), ids=GROUP_MUTANTS)
def test_a_wrong_product_of_several_groups_is_found(monkeypatch, tile, module, factory, edit):
    tile.choose(monkeypatch, "sim", profiles.SIMULATOR)
    with mutant(module, factory, written_anew(module, factory, edit)):
        assert_found(tile.case, WRONG)


# ----------------------------------------------------------------------------------------------- waiting, and tables
WAIT_MUTANTS = {
    "none": (RIGHT, lambda source: source),
    "a group multiplied that was only looked for": (
        WRONG, replaced("== GIVEN) or found !=", "== GIVEN) or group > 0 or found !=")
    ),
    "one row of a group not waited for": (
        WRONG, replaced("largest(found, newest(", "found if cuda.threadIdx.x % 32 == 5 else largest(found, newest(")
    ),
    "never looked again": (
        LIVELOCK, replaced("            look_again(thread, role, turn)\n", "            sleep(sleep_ns)\n")
    ),
}  # fmt: skip


@pytest.mark.parametrize("shows, edit", WAIT_MUTANTS.values(), ids=WAIT_MUTANTS)
def test_a_wait_for_less_is_found(monkeypatch, shows, edit):
    """Block 1 publishes its first h when block 0 has looked for it, in vain: for the second of three groups."""
    MMA.choose(monkeypatch, "sim", profiles.SIMULATOR)
    load_words, store_word, size, row = ptx.load_words, ptx.store_word, 4 * 2 * 72, 72
    lanes = set()

    def load(array, index):
        words = load_words(array, index)
        if cuda.blockIdx.x == 0 and len(array) == size and index // row in (2, 3) and index % row in range(32, 64):
            lanes.add(cuda.threadIdx.x)
        return words

    def store(array, index, word):
        while cuda.blockIdx.x == 1 and len(array) == size and index // row in (2, 3) and len(lanes) < 32:
            exchange.ptx.sleep(0)
        store_word(array, index, word)

    wait = written_anew(exchange, "make_wait", edit) if shows else exchange.make_wait
    replacements = {(ptx, "load_words"): load, (ptx, "store_word"): store, (exchange, "make_wait"): wait}
    with altered(replacements):
        assert str(symptom_of(MMA.case)) == str(shows)
    assert len(lanes) == 32


def test_without_waiting_is_found():
    """What is not there yet is NaN."""
    with mutant(exchange, "make_newest", lambda *_: lambda words: np.uint32(0)):
        assert_found(TWO_LAYERS, WRONG)


@pytest.mark.parametrize("case", (TWO_LAYERS, replace(TWO_LAYERS, hidden=(8, 8))), ids=("one by one", "16 bytes"))
def test_without_looking_again_is_found(case):
    """What was not there at the first look never comes."""
    look = exchange.make_look
    with mutant(exchange, "make_look", lambda tile, group, again=False: look(tile, group) if not again else pause):
        assert_found(case, LIVELOCK)


def pause(thread, role, turn):
    exchange.ptx.sleep(0)


@pytest.mark.parametrize("what", (np.nan, 0.5))
def test_unmarked_buffers_are_found(monkeypatch, what):
    """What another call left is taken for what this call computes."""
    monkeypatch.setattr(engines.get("sim"), "mark_unwritten", lambda array: array.fill(what), raising=False)
    assert_found(TWO_LAYERS, WRONG)


@pytest.mark.parametrize(
    "kind, column, by, shows",
    [
        (RECURRENT, "shift", 1, LIVELOCK),
        (RECURRENT, "shift", -1, OUTSIDE),
        (RECURRENT, "column", 1, LIVELOCK),
        (RECURRENT, "columns", -1, WRONG),
        (RECURRENT, "weights", 1, WRONG),
        (INPUT, "shift", 1, LIVELOCK),
        (INPUT, "shift", -1, OUTSIDE),
        (INPUT, "column", 1, LIVELOCK),
        (INPUT, "columns", -1, WRONG),
        (INPUT, "weights", 1, WRONG),
    ],
    ids=str,
)
def test_a_wrong_table_is_found(monkeypatch, kind, column, by, shows):
    """A warp that reads another step, other columns or other weights, or leaves one out; waits for itself."""
    make_tables = launches.make_tables

    def wrong(*arguments):
        blocks, warps = (table.copy() for table in make_tables(*arguments))
        working = (warps[..., WARP.columns] > 0) & (warps[..., WARP.kind] == kind)
        warps[..., getattr(WARP, column)][working] += by
        return blocks, warps

    monkeypatch.setattr(launches, "make_tables", wrong)
    assert_found(TWO_LAYERS, shows)


@pytest.mark.parametrize(
    "swap",
    [
        lambda a, b: (a, (b[1], b[0])),
        lambda a, b: ((a[0], a[2], a[1], a[3]), b),
        lambda a, b: ((a[2], a[3], a[0], a[1]), b),
    ],
    ids=("words of B", "rows and columns of A", "columns of A"),
)
def test_swapped_operands_of_mma_are_found(swap):
    mma = ptx.mma_float16
    with mutant(ptx, "mma_float16", lambda a, b, sums: mma(*swap(a, b), sums)):
        assert_found(Case("rnn_tanh", T=2, B=2, hidden=(16,), dtype="float16"), WRONG)


# ------------------------------------------------------------------------------------------------------ never a hang
def check_silence(monkeypatch, case, message, backward, store):
    """The kernel ends where a block does not publish what others wait for, and the error says who waited in vain; then
    the layer works again.

    Args:
        message: the error's, up to the name of the pass.
        store: in place of `ptx.store`.
    """
    problem, layer = make_problem(case), case.layer("sim", schedule="persistent")
    monkeypatch.setattr(launches, "POLLS", 400)
    monkeypatch.setattr(launches, "POLLS_PER_STEP", 0)
    tape = layer.forward(problem.x)[2] if backward else None
    silent = pytest.raises(RuntimeError, match=f"{message}{'backward' if backward else 'forward'} pass")
    with simulator.schedule(ORDER["seed"], PATIENCE), mutant(ptx, "store", store), silent:
        if backward:
            layer.backward(tape, problem.dy)
        else:
            layer.forward(problem.x)
    assert_close(case, infer(layer, problem), infer(case.layer("sim", schedule="stepwise"), problem))


@pytest.mark.parametrize("direction", (0, 1))
@pytest.mark.parametrize("backward", (False, True), ids=("forward", "backward"))
def test_a_block_that_never_publishes_is_reported(monkeypatch, backward, direction):
    case, silent_step = Case("rnn_tanh", T=4, B=1, hidden=(5, 5), directions=2), 2
    last = 1  # forward the layer for which nobody waits but itself, backward that of the first of two launches
    block, width = ((0 if backward else last) * 2 + direction) * 2 + 1, 5 if backward else 2 * 5
    backwards = direction == (0 if backward else 1)
    silent_time = case.T - 1 - silent_step if backwards else silent_step
    ptx_store = ptx.store

    def store(array, index, value):
        time = index // (case.B * width) - (not backward)
        if cuda.blockIdx.x != block or time != silent_time or len(array) != (case.T + 2 * (not backward)) * width:
            ptx_store(array, index, value)

    message = f"gave up: layer {last}, direction {direction}, .* at step {silent_step + 1} of the "
    check_silence(monkeypatch, case, message, backward, store)


def test_a_group_of_chunks_that_never_comes_is_reported(monkeypatch):
    """Also where the last group has come."""
    FMA.choose(monkeypatch, "sim", profiles.SIMULATOR)
    case, ptx_store = replace(FMA.case, T=3), ptx.store
    h_size, row = (case.T + 2) * case.B * 40, case.B * 40

    def store(array, index, value):
        """Block 0, with the first units, does not publish its h of step 1."""
        if cuda.blockIdx.x != 0 or len(array) != h_size or index // row != 2:
            ptx_store(array, index, value)

    check_silence(monkeypatch, case, r"gave up: layer 0, direction 0, .* at step 2 of the ", False, store)
