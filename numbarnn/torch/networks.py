"""Describe a network by sizes and options, without parameters, as a value that PyTorch's operators can carry.

An operator's arguments are tensors, numbers and text. It knows a network by its `key`, a text from which another
process, such as one that loads an exported program, makes it again. A key knows a custom cell by its name; the cell
must be defined (or passed to `known_cell`) there before, with the same equations.
"""

import json
from dataclasses import replace
from functools import partial
from hashlib import sha256
from weakref import WeakKeyDictionary

import torch

from numbarnn import cells
from numbarnn.engines import why_not
from numbarnn.layers.planned import Shape, reserve_size
from numbarnn.layers.stack import Stack
from numbarnn.torch.arrays import TENSORS

# torch.compile caches graphs on disk by the keys in them: its backward calls the operator with the old arguments, and
# asks for results of the old sizes. So keys contain a number that rises when operators' arguments change, the size of
# some call's reserve, and a digest of the cell's traced equations.
OPERATORS = 5
SOME_CALL = Shape(2, 3, padded=True, resets=True)
_cells = {}  # name in keys -> Cell, of cells that are not built in; never removed
_networks = {}  # key -> Network
_quiet = WeakKeyDictionary()  # Cell -> its `without_chance`

_NOWHERE = frozenset()
DTYPES = {torch.float32: "float32", torch.float64: "float64", torch.float16: "float16", torch.bfloat16: "bfloat16"}
HALVES = {torch.float16, torch.bfloat16}
DEVICES = {"cpu": "cpu", "cuda": "cuda"}  # PyTorch's types of devices that engines run on


def known_cell(cell):
    """Return the name by which keys of networks know a cell: its own, with a number if another cell has that one."""
    cell = cells.get(cell)
    if cells.CELLS.get(cell.name) is cell:
        return cell.name
    for name, known in _cells.items():
        if known is cell:
            return name
    name, number = cell.name, 1
    while name in _cells or name in cells.CELLS:
        number += 1
        name = f"{cell.name}#{number}"
    _cells[name] = cell
    return name


def _digest(cell):
    """Return a digest of a traced cell's source; None for cells written by hand."""
    return sha256(cell.source.encode()).hexdigest()[:16] if cell.source else None


def without_chance(cell):
    """Return the cell with the means of its random numbers, and no dropped weights, for gradients in evaluation mode.
    A cell without random numbers is returned itself."""
    if not cell.noise and not any(cell.drop_connect):
        return cell
    if cell not in _quiet:
        noise = tuple(
            replace(one, rate=0.0, kept=one.mean, uniform=False) for one in cell.noise
        )  # never 0, so always the mean
        _quiet[cell] = replace(cell, noise=noise, drop_connect=())
    return _quiet[cell]


def computes_in(tensor):
    """Return the dtype in which tensors of that device and dtype are computed: CPUs have no 16-bit arithmetic."""
    return torch.float32 if tensor.dtype in HALVES and not tensor.is_cuda else tensor.dtype


class Network:
    """A stack of recurrent layers of one width without device and dtype, which come from a call's tensors.

    Args:
        split: each matrix and vector of the equations is a parameter of its own.
        The others are as in `numbarnn.LSTM`, errors too.

    Attributes:
        stack: a `Stack` of it on the CPU, whose attributes are the arguments, checked.
        key: text that identifies its computation; equal for networks that compute the same.
        space: the `WeightSpace` of the parameters. parts: its `Parameter`s, in the flat buffer's order; size: its
            elements.
        draws: whether training draws random numbers.
        private: N, cell states besides h. remembers: whether calls may be repeated, see `Computation.again`.
    """

    def __init__(
        self, cell, input_size, hidden_size, num_layers=None, bias=True, dropout=0.0, bidirectional=False,
        split=False, **options,
    ):  # fmt: skip
        arguments = {
            name: value for name, value in locals().items() if name not in ("self", "options", "cell", "split")
        }
        self._cell, self._arguments = cells.get(cell), arguments | options
        self.stack = self._make("float32", "cpu", self._cell)
        self.stack.engine.join_pytorch(torch.get_num_threads)
        self.split, self.space = split, self.stack.space.split() if split else self.stack.space
        self.parts, self.size = self.space.parameters, self.space.size
        quiet = without_chance(self._cell)
        self.draws = quiet is not self._cell or (self.stack.dropout > 0 and self.stack.num_layers > 1)
        self.private = self.stack.cell.num_private
        self.remembers = not (self.draws or self.private > 1)
        hidden = {"num_layers": None, "hidden_size": list(self.stack.hidden_sizes)}
        known = {
            "cell": known_cell(self._cell), "source": _digest(self._cell), "operators": OPERATORS, "split": split,
            "reserve": reserve_size(self.stack, SOME_CALL, "float32"),
        }  # fmt: skip
        self.key = json.dumps(known | self._arguments | hidden, sort_keys=True)
        self._quiet, self._stacks = quiet, {}
        self.last_weights, self.last_call = None, (None, {})  # see `arrays.weights_of`, `Computation.again`

    def frozen(self, needed):
        """Return the (layer, direction) pairs without a needed parameter; `needed`: a bool for each parameter, or for
        all."""
        if len(needed) < len(self.parts) or all(needed):
            return _NOWHERE
        places = [(part.layer, part.direction) for part in self.parts]
        return frozenset(places) - {place for place, one in zip(places, needed, strict=True) if one}

    def _make(self, dtype, device, cell, **changes):
        return Stack(cell, **(self._arguments | changes), dtype=dtype, device=device)

    def __reduce__(self):
        return partial(Network, self._cell, **self._arguments, split=self.split), ()

    @classmethod
    def of_key(cls, key):
        """Return the network of a key, always the same one; ValueError if its cell is unknown here, or has other
        equations."""
        network = _networks.get(key)
        if network is None:
            arguments = json.loads(key)
            name, source, *_ = (arguments.pop(word, None) for word in ("cell", "source", "operators", "reserve"))
            cell = _cells.get(name) or cells.CELLS.get(name)
            if cell is None:
                raise ValueError(
                    f"the cell {name!r} is not known in this process: define it and pass it to "
                    "numbarnn.torch.networks.known_cell before you run the program"
                )
            if source not in (None, _digest(cell)):
                raise ValueError(
                    f"the cell {name!r} is not that of the exported program: its equations or numbarnn's version "
                    "differ. Export the program again"
                )
            network = _networks[key] = cls(cell, **arguments)
        return network

    def stack_for(self, tensor, draws=True):
        """Return the `Stack` for a tensor's device and dtype, see `computes_in`; without `draws` one that draws
        nothing. TypeError, with the cure, if no engine computes with such tensors."""
        kind = dtype, device, draws = computes_in(tensor), tensor.device, draws or not self.draws
        if (stack := self._stacks.get(kind)) is not None:
            return stack
        name, engine = DTYPES.get(dtype), DEVICES.get(device.type)
        if name is None:
            raise TypeError(
                f"tensors must be float32, float64, float16 or bfloat16, got {dtype}: convert them and the module with "
                ".float(), .double(), .half() or .bfloat16()"
            )
        if engine is None:
            raise TypeError(f"tensors must be on 'cpu' or 'cuda', got {str(device)!r}: move them with .to(...)")
        if why_not(engine):
            raise RuntimeError(f"tensors are on {str(device)!r}, which numbarnn cannot use: {why_not(engine)}")
        where = engine if device.index is None else f"{engine}:{device.index}"
        cell, changes = (self._cell, {}) if draws else (self._quiet, {"dropout": 0.0})
        stack = self._stacks[kind] = self._make(name, where, cell, **changes)
        stack.arrays = TENSORS
        return stack
