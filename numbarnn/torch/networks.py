"""Networks without parameters, which PyTorch's operators know by a text, the network's `key`.

An operator's arguments are tensors, numbers and text. Another process, such as one that loads an exported program,
makes the network again from its key. The key names a custom cell: the process must have defined it (or passed it to
`known_cell`) before, with the same equations.
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

# torch.compile caches graphs on disk by the keys in them. A cached graph calls operators with the arguments and sizes
# of its time. So keys contain a number that rises when operators' arguments change, the size of some call's reserve,
# and a digest of the cell's traced equations.
OPERATORS = 5
SOME_CALL = Shape(2, 3, padded=True, resets=True)
_cells = {}  # name in keys -> custom Cell
_networks = {}  # key -> Network
_quiet = WeakKeyDictionary()  # Cell -> its `without_chance`

DTYPES = {torch.float32: "float32", torch.float64: "float64", torch.float16: "float16", torch.bfloat16: "bfloat16"}
HALVES = {torch.float16, torch.bfloat16}
DEVICES = "cpu", "cuda"  # PyTorch's types of devices, with engines of these names


def known_cell(cell):
    """Return the name of a cell in keys: its own name, with a number if another cell has the same."""
    cell = cells.get(cell)
    name, number, taken = cell.name, 1, _cells | cells.CELLS
    while taken.get(name, cell) is not cell:
        number += 1
        name = f"{cell.name}#{number}"
    if name not in cells.CELLS:
        _cells[name] = cell
    return name


def _digest(cell):
    """Return a digest of a traced cell's source; None for a cell written by hand."""
    return sha256(cell.source.encode()).hexdigest()[:16] if cell.source else None


def without_chance(cell):
    """Return the cell with its random numbers replaced by their means, and no dropped weights, for evaluation mode."""
    if not cell.noise and not any(cell.drop_connect):
        return cell
    if cell not in _quiet:
        noise = tuple(replace(one, rate=0.0, kept=one.mean, uniform=False) for one in cell.noise)
        _quiet[cell] = replace(cell, noise=noise, drop_connect=())
    return _quiet[cell]


def computes_in(tensor):
    """Return the dtype in which the engine computes with a tensor: on CPUs float32 in place of half precision."""
    return torch.float32 if tensor.dtype in HALVES and not tensor.is_cuda else tensor.dtype


class Network:
    """A stack of recurrent layers without device and dtype, which come from a call's tensors.

    Args:
        split: make each matrix and vector of the equations a parameter.
        others: arguments of `numbarnn.LSTM`.

    Attributes:
        stack: the `Stack` in float32 on the CPU, for sizes and options.
        key: text that identifies what the network computes.
        space: the `WeightSpace` of the parameters. parts: its `Parameter`s, in the flat buffer's order;
            places: their shapes, strides and offsets.
        size: number of elements of the flat buffer. draws: whether training draws random numbers.
        private: N, cell states besides h. remembers: whether `Computation.again` may repeat calls.
    """

    def __init__(self, cell, input_size, hidden_size, num_layers=None, split=False, **options):
        arguments = {"input_size": input_size, "hidden_size": hidden_size, "num_layers": num_layers}
        self._cell, self._arguments = cells.get(cell), arguments | options
        self.stack = self._make("float32", "cpu", self._cell)
        self.stack.engine.join_pytorch(torch.get_num_threads)
        self.split, self.space = split, self.stack.space.split() if split else self.stack.space
        self.parts, self.size = self.space.parameters, self.space.size
        self.places = [(part.shape, (*part.shape[1:], 1)[: len(part.shape)], part.offset) for part in self.parts]
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
        self.last_weights, self.last_call = (None, None), (None, {})  # see `arrays.weights_of`, `Computation.again`

    def frozen(self, needed):
        """Return the (layer, direction) pairs of which no parameter is needed. needed: a bool for each weight."""
        if len(needed) < len(self.parts) or all(needed):  # one flat tensor has one bool
            return frozenset()
        places = [(part.layer, part.direction) for part in self.parts]
        return frozenset(places) - {place for place, one in zip(places, needed, strict=True) if one}

    def _make(self, dtype, device, cell, **changes):
        return Stack(cell, **(self._arguments | changes), dtype=dtype, device=device)

    def __reduce__(self):
        return partial(Network, self._cell, **self._arguments, split=self.split), ()

    @classmethod
    def of_key(cls, key):
        """Return the network of a key. Raise ValueError if its cell is unknown here, or has other equations."""
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
        """Return the `Stack` that computes with a tensor. draws: with the network's random numbers.

        Raises TypeError or RuntimeError if no engine computes with such a tensor."""
        kind = dtype, device, draws = computes_in(tensor), tensor.device, draws or not self.draws
        if (stack := self._stacks.get(kind)) is not None:
            return stack
        if dtype not in DTYPES:
            raise TypeError(
                f"tensors must be float32, float64, float16 or bfloat16, got {dtype}: convert them and the module with "
                ".float(), .double(), .half() or .bfloat16()"
            )
        if device.type not in DEVICES:
            raise TypeError(f"tensors must be on 'cpu' or 'cuda', got {str(device)!r}: move them with .to(...)")
        if reason := why_not(device.type):
            raise RuntimeError(f"tensors are on {str(device)!r}, which numbarnn cannot use: {reason}")
        cell, changes = (self._cell, {}) if draws else (self._quiet, {"dropout": 0.0})
        stack = self._stacks[kind] = self._make(DTYPES[dtype], str(device), cell, **changes)
        stack.arrays = TENSORS
        return stack
