"""Blocks of a cluster that share products backward (`kernels.persistent.cluster`), in the simulator: against float64
and blocks alone, with the same bits whoever comes first; wrong ones, and blocks that keep silent, are found out.
"""

import pytest
from numba import cuda
from persistent_setup import few_threads
from test_persistent_mutants import ORDER, RIGHT, WRONG, replaced, symptom_of, written_anew

from cases import Case
from comparing import assert_close, assert_same_bits
from grouped_tiles import launches_of
from kernel_mutants import mutant
from numbarnn.cuda import ptx, simulator
from numbarnn.kernels.persistent import backward, cluster
from numbarnn.passes import launches
from numbarnn.schedules.persistent import tilings
from problems import make_problem
from running import train


@pytest.fixture
def in_clusters(monkeypatch):
    """A function in_clusters(size): backward, blocks share products in clusters of so many; 1: none."""
    monkeypatch.setitem(ORDER, "seed", 0)
    few = {"CLUSTER_GAIN": -1e6, "multiprocessors": 40}
    small = few_threads(monkeypatch)
    return lambda size, **device: small(CLUSTERS=(size,) if size > 1 else (), **few, **device)


def trained(case, seed=0):
    """What training gives in an order of the threads."""
    problem = make_problem(case)
    with simulator.schedule(seed):
        return train(problem.layer("sim", schedule="persistent"), problem)[0]


# More sequences than are multiplied at once: a step is two turns. And blocks that own fewer units, or none.
TURNS = Case("lstm", T=3, B=17, hidden=(9,))
CASES = [
    (2, Case("lstm", T=3, B=2, hidden=(18,))),
    (4, Case("gru", T=3, B=2, hidden=(9,))),
    (2, TURNS),
    (4, Case("lstm", T=3, B=3, hidden=(9, 7), directions=2, lengths=(3, 2, 1))),  # two launches
    (2, Case("gru", T=3, B=3, hidden=(9,), resets=True)),
    (2, Case("lstm", T=2, B=2, hidden=(12,), dtype="float64")),
    (4, Case("rnn_relu", T=2, B=1, hidden=(36,), state=False)),
]
PLACES = {"shared": {}, "registers": {"registers": 65536}}  # of weights
CASES = [(*one, place) for number, one in enumerate(CASES) for place in PLACES if number < 2 or place == "shared"]


@pytest.mark.parametrize("size, case, place", [pytest.param(*one, id=f"{one[0]}-{one[1]}-{one[2]}") for one in CASES])
def test_agrees_with_float64_and_with_blocks_alone(in_clusters, size, case, place):
    in_clusters(1, **PLACES[place])
    alone = trained(case)
    in_clusters(size, **PLACES[place])
    tiles = {launch.tile for launch in launches_of(case) if launch.backward}
    assert {(tile.cluster, tile.resident) for tile in tiles} == {(size, place)}
    found = trained(case)
    assert_close(case, found, make_problem(case).expected(), "in clusters")
    assert_close(case, found, alone, "in clusters and alone")
    assert_same_bits(trained(case, seed=1), found, "in another order of the threads")


def test_halves_could_share_products_too(in_clusters, monkeypatch):
    """By the tensor cores, for which the planner has larger blocks instead."""
    monkeypatch.setattr(tilings._Part, "clusters", property(lambda part: tilings.CLUSTERS if part.backward else ()))
    in_clusters(2)
    case = Case("lstm", T=3, B=2, hidden=(24,), dtype="float16")
    assert [(launch.tile.math, launch.tile.cluster) for launch in launches_of(case)] == [("mma", 1), ("mma", 2)]
    assert_close(case, trained(case), make_problem(case).expected())


@pytest.mark.parametrize(
    "case",
    (Case("lstm", T=2, B=2, hidden=(5, 6), proj_size=3), Case("gru_reset_before", T=2, B=2, hidden=(9,))),
    ids=str,
)
def test_what_exchanges_something_within_a_step_is_not_in_clusters(in_clusters, case):
    in_clusters(2)
    assert {launch.tile.cluster for launch in launches_of(case)} == {1}


# ------------------------------------------------------------------------------------------------- wrong ones are found
def late(place, turns):
    """An edit that lets every second block be late at a place, which is left as it is."""
    indent = " " * (len(place) - len(place.lstrip()))
    wait = f"{indent}for _ in range({turns} * (cuda.blockIdx.x % 2)):\n{indent}    cuda.nanosleep(0)\n"
    return replaced(place, wait + place)


SENDS, READS, BEGINS = "        place = place_of(", "            total, at = zero, place_of(", "        h, c = states\n"
MUTANTS = {
    "late to send": (RIGHT, "make_share_sums", late(SENDS, 60)),
    "sent to the sender": (WRONG, "make_share_sums", replaced("np.uint32(row // U)", "np.uint32(cuda.blockIdx.x % C)")),
    "only the first block's added": (WRONG, "make_sum", replaced("range(C)", "range(1)")),
    "of other units": (WRONG, "make_share_sums", replaced("b * U + row % U", "b * U + U - 1 - row % U")),
    "late to read": (RIGHT, "make_sum", late(READS, 60)),
}  # fmt: skip


@pytest.mark.parametrize("shows, factory, edit", MUTANTS.values(), ids=MUTANTS)
def test_wrong_sums_are_found(in_clusters, shows, factory, edit):
    in_clusters(2)
    with mutant(cluster, factory, written_anew(cluster, factory, edit)):
        assert str(symptom_of(TURNS)) == str(shows)


def test_sums_that_are_not_waited_for_are_found(in_clusters):
    """Nor is whether others have failed, so that a block leaves alone."""
    in_clusters(2)
    no_barrier = replaced("        cluster_barrier()\n        all_well", "        all_well")
    source = lambda text: no_barrier(late(SENDS, 60)(text))  # noqa: E731
    with mutant(cluster, "make_share_sums", written_anew(cluster, "make_share_sums", source)):
        with pytest.raises(RuntimeError, match=r"stores to shared memory of block .*, which has ended"):
            trained(TURNS)


def test_one_place_for_all_turns_is_found(in_clusters):
    """Whoever is done with a turn stores the next one's sums over those that a late block has not read yet."""
    in_clusters(2)
    one_place = written_anew(cluster, "_make_place", replaced("number % 2 * BETWEEN_TURNS", "0"))
    with mutant(cluster, "_make_place", one_place):
        with mutant(cluster, "make_sum", written_anew(cluster, "make_sum", late(READS, 60))):
            assert str(symptom_of(TURNS)) == str(WRONG)


def test_a_store_to_a_block_that_has_not_begun_is_found(in_clusters):
    in_clusters(2)
    late_to_begin = written_anew(backward, "make_backward", late(BEGINS, 200))
    with mutant(backward, "make_backward", late_to_begin):
        assert symptom_of(TURNS) is RIGHT
        without = replaced("            cluster_barrier()  # before it,", "            pass  #")
        with mutant(cluster, "make_share_sums", written_anew(cluster, "make_share_sums", without)):
            with pytest.raises(RuntimeError, match=r"stores to shared memory of block .*, which may not have begun"):
                trained(TURNS)


# ------------------------------------------------------------------------------------------------------- silent blocks
SILENT = Case("rnn_tanh", T=5, B=2, hidden=(18,))  # of each cluster one block multiplies, and so waits


def fails(monkeypatch, message):
    """Backward, block 1 publishes nothing at time 1, for which nobody waits for long: see how that ends."""
    problem, store = make_problem(SILENT), ptx.store
    layer = problem.layer("sim", schedule="persistent")
    tape, of_time = layer.forward(problem.x)[2], SILENT.B * SILENT.hidden[0]

    def silent_store(array, index, value):
        if cuda.blockIdx.x != 1 or index // of_time != 1:
            store(array, index, value)

    with monkeypatch.context() as patch, simulator.schedule(0, 1000), mutant(ptx, "store", silent_store):
        patch.setattr(launches, "POLLS", 400)
        patch.setattr(launches, "POLLS_PER_STEP", 0)
        with pytest.raises(RuntimeError, match=message):
            layer.backward(tape, problem.dy)


@pytest.mark.parametrize("size", (2, 4))
def test_blocks_of_a_cluster_leave_together(in_clusters, monkeypatch, size):
    """Some wait for a silent block, others share products with these; all end, and later calls are right."""
    in_clusters(size)
    fails(monkeypatch, r"layer 0, direction 0, .* at step 4 of the backward pass")
    assert_close(SILENT, trained(SILENT), make_problem(SILENT).expected())


def test_a_block_that_leaves_alone_is_found(in_clusters, monkeypatch):
    in_clusters(2)
    leave = "                if failed[0] != 0:\n                    return\n"
    stays = "                if waits_within and not share_sums("
    alone = written_anew(backward, "make_backward", replaced(stays, leave + stays))
    with mutant(backward, "make_backward", alone):
        fails(monkeypatch, r"stores to shared memory of block .*, which has ended")
