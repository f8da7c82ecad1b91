"""A traced cell as a loop over time in eager PyTorch, as its users write one; autograd derives the backward.

All products of x are one before the loop; in it, matrices that multiply the same vector are one product, with its bias,
and each operation of the equations is one of PyTorch's. Random numbers of training are not PyTorch's: `why_not` says
which cells have no loop.
"""

import operator

import numpy as np

from numbarnn.bench.peers.contender import torch
from numbarnn.bench.peers.torch_peer import numpy_to_torch, torch_to_numpy
from numbarnn.cells.layout import STACKED
from numbarnn.cells.tracing.graph import reachable
from numbarnn.weights import WeightSpace, parameter_name
from numbarnn.weights.formed import Values
from numbarnn.weights.space import named

_OF_PYTHON = {"add": "add", "sub": "sub", "mul": "mul", "neg": "neg", "divide": "truediv", "power": "pow"}
_OF_PYTHON |= {name: name for name in ("gt", "ge", "lt", "le", "eq", "ne")}
_OTHER_NAMES = {"absolute": "abs", "clip": "clamp", "modulo": "remainder"}
_LINEAR_FROM = 40.0  # beyond it softplus(x) is x to PyTorch; its default, 20, shows in float64


def why_not(cell, train):
    """Why there is no loop of a cell; None if there is one."""
    if getattr(cell, "structure", None) is None:
        return "written by hand, not as equations"
    if train and (cell.noise or cell.drop_connect):
        return "draws random numbers in training, which PyTorch draws otherwise"
    return None


def operation(op, dtype):
    """PyTorch's function for an operation of `numbarnn.cells.tracing.graph`; one that takes tensors alone is wrapped so
    that it takes numbers, too."""
    functional, is_tensor, tensor = torch.nn.functional, torch.is_tensor, torch.tensor

    def tensors(function):
        def call(*values):
            device = next(value.device for value in values if is_tensor(value))
            return function(*(v if is_tensor(v) else tensor(v, dtype=dtype, device=device) for v in values))

        return call

    own = {
        "row_sum": lambda a: a.sum(-1, keepdim=True),
        "row_max": lambda a: a.detach().amax(-1, keepdim=True),
        "stop_gradient": lambda a: a.detach(),
        "custom_derivative": tensors(_with_derivative),
        "softplus": lambda a: functional.softplus(a, threshold=_LINEAR_FROM),
        "normal_cdf": torch.special.ndtr,
    }
    if op in own or op in _OF_PYTHON:
        return own.get(op) or getattr(operator, _OF_PYTHON[op])
    name = _OTHER_NAMES.get(op, op)
    found = getattr(torch, name, None) or getattr(functional, name)
    return tensors(found) if op in ("maximum", "minimum", "where") else found


def _with_derivative(value, *pairs):
    """A value whose derivative by each x of the pairs (x, derivative) is that."""
    told = sum(derivative.detach() * x for x, derivative in zip(pairs[::2], pairs[1::2], strict=True))
    return value.detach() + told - told.detach()


class _Values(Values):
    """The values of terms of tensors."""

    def parameter(self, name):
        return self.parameters[name]

    def constant(self, array):
        return self.arrays.as_tensor(array, dtype=self.dtype)


class LoopNetwork:
    """Layers of one direction of a traced cell; parameters: as a numbarnn layer's `state_dict`.

    leaves: name of a parameter -> tensor.
    """

    def __init__(self, cell, H, parameters, layers=1, device="cpu"):
        self.cell, self.H, self.layers = cell, H, layers
        self.leaves = {name: numpy_to_torch(array, device) for name, array in parameters.items()}
        structure, dtype = cell.structure, next(iter(self.leaves.values())).dtype
        nodes = reachable(structure.outputs)
        self._known = {node: node.data for node in nodes if node.op == "const"}
        self._known |= {node: float(H) for node in nodes if node.op == "units"}
        self._known |= {node: node.data[1].mean for node in structure.noise}
        self._state = {node: node.data for node in nodes if node.op == "state"}
        self._products = {}  # vector -> number in R and node of all gates that multiply it
        for number, node in enumerate(structure.all_recurrent.values()):
            self._products.setdefault(node.args[0], []).append((number, node))
        # (node, function, arguments) of each operation; the first product of a vector stands for all of them
        firsts = {own[0][1] for own in self._products.values()}
        self._work = [(node, None if node.op == "product" else operation(node.op, dtype), node.args)
                      for node in nodes if node.args and (node.op != "product" or node in firsts)]  # fmt: skip

    def __call__(self, x, states):
        """x (T, B, I), states one (L, B, H) each -> y (T, B, H), and the final states, a list per layer."""
        finals = []
        for layer in range(self.layers):
            x, final = self._run(x, [state[layer] for state in states], layer)
            finals.append(final)
        return x, finals

    def _run(self, x, state, layer):
        cell, structure, H, linear = self.cell, self.cell.structure, self.H, torch.nn.functional.linear
        kinds = self._read(layer, x.shape[-1])
        W, R, b_w, b_r, W_hr = (kinds.get(kind) for kind in ("W", "R", "b_w", "b_r", "W_hr"))
        if cell.heads > 1:
            R = [torch.block_diag(*gate.chunk(cell.heads)) for gate in R]
        known = self._known | dict(zip(structure.per_unit.values(), kinds["per_unit"], strict=True))
        products = {vector: (torch.cat([R[k] for k, _ in own]), b_r and torch.cat([b_r[k] for k, _ in own]))
                    for vector, own in self._products.items()}  # fmt: skip
        sizes, ys, rows_of_x = [H, *(part.shape[-1] for part in state[1:])], [], list(map(len, W))
        for gates_of_x in linear(x, torch.cat(W), b_w and torch.cat(b_w)).unbind(0):
            values = known | dict(zip(structure.gates.values(), gates_of_x.split(rows_of_x, -1), strict=True))
            values |= {node: state[number] for node, number in self._state.items()}
            for node, function, arguments in self._work:
                if function is None:
                    (weights, bias), own = products[arguments[0]], self._products[arguments[0]]
                    vector = values[arguments[0]].expand(-1, weights.shape[1])
                    parts = linear(vector, weights, bias).split([len(R[k]) for k, _ in own], -1)
                    values |= {gate: part for (_, gate), part in zip(own, parts, strict=True)}
                else:
                    values[node] = function(*[values[argument] for argument in arguments])
            new = zip(structure.outputs, sizes, strict=True)
            state = [self._whole(values[node], state[0], size) for node, size in new]
            if W_hr is not None:
                state[0] = linear(state[0], W_hr)
            ys.append(state[0])
        return torch.stack(ys), state

    def _read(self, layer, inputs):
        """What the products of a layer multiply with: kind -> a list with one part per gate, of parameters or what is
        formed of them; "per_unit" -> likewise; "W_hr" -> a matrix."""
        cell, H = self.cell, self.H
        kinds = {kind: self.leaves[parameter_name(kind, layer, 0)] for kind in STACKED
                 if parameter_name(kind, layer, 0) in self.leaves}  # fmt: skip
        kinds = {kind: part if kind == "W_hr" else list(part.split(H)) for kind, part in kinds.items()}
        kinds["per_unit"] = [self.leaves.get(named(name, layer, 0)) for name in cell.per_unit]
        if not cell.parameters.formed:
            return kinds
        space = WeightSpace(
            cell.num_gates, inputs, (H,), 1, cell.bias, len(kinds.get("W_hr", ())), num_ah=cell.num_ah,
            per_unit=cell.per_unit, heads=cell.heads, layout=cell.parameters,
        )  # fmt: skip
        leaves = {
            part.name: self.leaves[part.name.replace("_l0", f"_l{layer}")].reshape(-1) for part in space.parameters
        }
        views = {
            name: leaves[part.name][where.start - part.offset : where.stop - part.offset].reshape(shape)
            for name, (part, where, shape) in space.blocks[0, 0].items()
        }
        values = _Values(torch, views, next(iter(leaves.values())).dtype, space.sizes[0, 0])
        for kind, terms in cell.parameters.formed.items():
            found = [torch.as_tensor(values.of(term), dtype=values.dtype) for term in terms]
            if kind in ("b_w", "b_r"):  # some may be one number for all units
                rows = map(len, kinds[{"b_w": "W", "b_r": "R"}[kind]])
                found = [one.expand(size) for one, size in zip(found, rows, strict=True)]
            kinds[kind] = found[0] if kind == "W_hr" else found
        return kinds

    @staticmethod
    def _whole(value, like, H):
        """A value as (B, H), which may be one for all units, or a number."""
        shape = (len(like), H)
        return value.expand(shape) if hasattr(value, "expand") else like.new_full(shape, value)

    def gradients(self):
        """Name -> the gradient of each parameter (NumPy)."""
        return {
            name: np.zeros(leaf.shape, torch_to_numpy(leaf).dtype) if leaf.grad is None else torch_to_numpy(leaf.grad)
            for name, leaf in self.leaves.items()
        }
