"""Persistent kernels whose warps gather their columns in several groups, as those of H = 512 and 768 do, at sizes that
run in the simulator and on the emulated GPU: 64 bytes of a row at once, of rows of three times as many and more.
"""

from dataclasses import dataclass, replace
from itertools import count

from cases import Case
from numbarnn import engines
from numbarnn.kernels.persistent import backward, forward
from numbarnn.kernels.persistent.tile import N8
from numbarnn.schedules.persistent import planner, residence, tilings
from numbarnn.schedules.persistent import schedule as schedule

GROUPS = 3  # at least: a first one, one in between, a last one
_numbers = count()  # of devices: no two are the same
WORDS_OF_A_GROUP = 4  # that a lane has on the way of each 8 sequences: 16 bytes, so that a group is one chunk


def choose(monkeypatch, device, profile, **changes):
    """Change what the planner knows of a device and what it may choose.

    Args:
        profile: the DeviceProfile that `changes` begin with.
        changes: fields of it; in capitals constants, such as UNITS=(8,), of `tilings`, `residence` or the planner.
    """
    changes["name"] = f"{profile.name} {next(_numbers)}"  # the planner remembers devices by all they are
    for name in [name for name in changes if name.isupper()]:
        module = next(one for one in (residence, tilings, planner) if hasattr(one, name))
        monkeypatch.setattr(module, name, changes.pop(name))
    monkeypatch.setattr(engines.get(device), "profile", replace(profile, **changes), raising=False)


def place_weights(monkeypatch, resident):
    """Let weights be in the places of a `Tile.resident`, about as many chunks in each."""
    places, whole_tile = resident.split("+"), residence.whole_tile

    def placed(plain, room):
        tile = whole_tile(plain, room)
        return replace(tile, shared_chunks=tile.chunks // len(places))

    monkeypatch.setattr(tilings, "whole_tile", placed)


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
    """A case, how it is multiplied and where its weights are. Attributes: as of `tile.Tile`; units, per block; ahead:
    whether a warp looks for the next group ahead of time."""

    case: Case
    math: str
    resident: str
    units: int
    ahead: bool = True

    def __str__(self):
        return f"{self.case}-{self.math}-{self.resident}{'' if self.ahead else '-one by one'}"

    @property
    def limit(self):
        """The largest error: TF32 has the mantissa of float16."""
        case = self.case
        return replace(case, dtype="float16").limit if self.math == "tf32" else case.limit

    def choose(self, monkeypatch, device, profile):
        """Let the planner choose that tile and see that it does: in each kernel a warp gathers three groups or more."""
        monkeypatch.setattr(tilings, "_math", lambda problem, profile: self.math)
        words = WORDS_OF_A_GROUP * (2 if self.case.B > N8 else 1)
        looking = lambda tile, *_: replace(tile, groups_ahead=int(self.ahead))  # noqa: E731
        monkeypatch.setattr(residence, "looking_ahead", looking)
        choose(
            monkeypatch,
            device,
            profile,
            registers=65536 if "registers" in self.resident else 0,
            warps=(len(self.case.hidden),),  # a warp for each product
            multiprocessors=100,
            UNITS=(self.units,),
            SLICES=(1,),
            WORDS_ON_THE_WAY=(words, words),
        )
        if "+" in self.resident:
            place_weights(monkeypatch, self.resident)
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
    yield GroupedTile(Case("gru", T=2, B=2, hidden=(72,), dtype="float16"), "mma", "shared", 24, ahead=False)
    yield GroupedTile(Case("lstm", T=2, B=2, hidden=(36,)), "fma", "shared", 12, ahead=False)
    for resident in ("registers", "shared"):
        yield GroupedTile(Case("rnn_tanh", T=2, B=2, hidden=(40,)), "tf32x3", resident, 20)


def _mixed():
    """Weights in registers and shared memory; rows that begin at multiples of 16 bytes and others, several sequences at
    once and turns, two layers, warps whose last columns are not there."""
    for case, math, units in (
        (Case("lstm", T=2, B=2, hidden=(104,), dtype="float16"), "mma", 28),
        (Case("gru", T=2, B=2, hidden=(100,), dtype="bfloat16"), "mma", 36),
        (Case("rnn_tanh", T=2, B=9, hidden=(104, 104), dtype="float16"), "mma", 56),
        (Case("rnn_tanh", T=2, B=2, hidden=(72,)), "tf32", 36),
        (Case("rnn_tanh", T=2, B=2, hidden=(72,)), "tf32x3", 36),
    ):
        yield GroupedTile(case, math, "registers+shared", units)


CHEAP = list(_cheap())  # in the simulator
MIXED_TILES = list(_mixed())
TWO_LAYERS = [
    GroupedTile(Case("lstm", T=3, B=3, hidden=(72, 72), dtype="float16"), "mma", "registers", 16),
    GroupedTile(Case("gru", T=3, B=3, hidden=(72, 72), dtype="float16"), "mma", "shared", 24),
    GroupedTile(Case("lstm", T=3, B=3, hidden=(36, 36)), "fma", "shared", 12),
    GroupedTile(Case("gru", T=3, B=3, hidden=(36, 36)), "fma", "registers", 12),
]
