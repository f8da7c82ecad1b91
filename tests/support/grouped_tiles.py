"""Persistent kernels whose warps gather their columns in several groups, as those of H = 512 and 768 do, at sizes that
run in the simulator and on the emulated GPU: 64 bytes of a row at once, of rows of three times as many and more.
"""

from dataclasses import dataclass, replace

from cases import Case
from numbarnn import engines
from numbarnn.kernels.persistent import backward, forward
from numbarnn.schedules.persistent import planner
from numbarnn.schedules.persistent import schedule as schedule

GROUPS = 3  # at least: a first one, one in between, a last one
WORDS_OF_A_GROUP = 4  # that a lane has on the way: 16 bytes of one tile, so that a group is one chunk


def choose(monkeypatch, device, profile, **changes):
    """Change what the planner knows of a device and what it may choose.

    Args:
        profile: the DeviceProfile that `changes` begin with.
        changes: fields of it; in capitals the planner's constants, such as UNITS=(8,).
    """
    changes["name"] = f"{profile.name} for {monkeypatch} {changes}"  # the planner remembers devices by all they are
    for name in [name for name in changes if name.isupper()]:
        monkeypatch.setattr(planner, name, changes.pop(name))
    monkeypatch.setattr(engines.get(device), "profile", replace(profile, **changes), raising=False)


def tiles_made(monkeypatch):
    """A list of the tiles of all persistent kernels that are made from now on."""
    tiles = []
    for module, name in ((forward, "make_forward"), (backward, "make_backward")):
        make = getattr(module, name)
        record = lambda cell, tile, *options, make=make: tiles.append(tile) or make(cell, tile, *options)  # noqa: E731
        monkeypatch.setattr(module, name, record)
    return tiles


def launches_of(case, device="sim", training=True):
    """All launches of a call, forward then backward."""
    problem = case.layer(device, schedule="persistent").stack.problem(case.T, case.B, training)
    return [launch for backward in (False, True) for launch in schedule.SCHEDULE.launches(problem, backward)]


@dataclass(frozen=True)
class GroupedTile:
    """A case, how it is multiplied and where its weights are. Attributes: as of `tile.Tile`; units, per block."""

    case: Case
    math: str
    resident: str
    units: int

    def __str__(self):
        return f"{self.case}-{self.math}-{self.resident}"

    @property
    def limit(self):
        """The largest error: TF32 has the mantissa of float16."""
        case = self.case
        return replace(case, dtype="float16").limit if self.math == "tf32" else case.limit

    def choose(self, monkeypatch, device, profile):
        """Let the planner choose that tile and see that it does: in each kernel a warp gathers three groups or more."""
        monkeypatch.setattr(planner, "_math", lambda problem, profile: self.math)
        choose(
            monkeypatch,
            device,
            profile,
            registers=65536 if self.resident == "registers" else 0,
            warps=(len(self.case.hidden),),  # a warp for each product
            multiprocessors=100,
            UNITS=(self.units,),
            SLICES=(1,),
            WORDS_ON_THE_WAY=(WORDS_OF_A_GROUP, WORDS_OF_A_GROUP),
        )
        launches = launches_of(self.case, device)
        assert [launch.backward for launch in launches] == [False, True]
        for tile in (launch.tile for launch in launches):
            assert (tile.math, tile.resident, tile.gathered) == (self.math, self.resident, 1)
            assert tile.chunks // tile.gathered >= GROUPS


def _cheap():
    """By the tensor cores and by FMA, from registers and from shared memory; more than one block each."""
    for resident in ("registers", "shared"):
        yield GroupedTile(Case("rnn_tanh", T=2, B=2, hidden=(72, 72), dtype="bfloat16"), "mma", resident, 36)
        yield GroupedTile(Case("rnn_tanh", T=2, B=2, hidden=(36, 36)), "fma", resident, 20)
        yield GroupedTile(Case("rnn_tanh", T=2, B=2, hidden=(40,)), "tf32", resident, 20)
    yield GroupedTile(Case("gru", T=2, B=2, hidden=(72,), dtype="float16"), "mma", "shared", 24)
    yield GroupedTile(Case("lstm", T=2, B=2, hidden=(36,)), "fma", "shared", 12)
    yield GroupedTile(Case("rnn_tanh", T=2, B=2, hidden=(20,), dtype="float64"), "fma", "shared", 12)
    for resident in ("registers", "shared"):
        yield GroupedTile(Case("rnn_tanh", T=2, B=2, hidden=(40,)), "tf32x3", resident, 20)


CHEAP = list(_cheap())  # in the simulator
TWO_LAYERS = [
    GroupedTile(Case("lstm", T=3, B=3, hidden=(72, 72), dtype="float16"), "mma", "registers", 16),
    GroupedTile(Case("gru", T=3, B=3, hidden=(72, 72), dtype="float16"), "mma", "shared", 24),
    GroupedTile(Case("lstm", T=3, B=3, hidden=(36, 36)), "fma", "shared", 12),
    GroupedTile(Case("gru", T=3, B=3, hidden=(36, 36)), "fma", "registers", 12),
]
