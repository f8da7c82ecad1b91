"""A cell written as equations as a loop over time in eager PyTorch, as its users write one; autograd goes back.

It interprets the traced graph of the equations on tensors. All products of x are one before the loop; in it, matrices
that multiply the same vector are one product, with its bias. Random numbers of training are not PyTorch's.
"""

import operator

from numbarnn.bench.peers.contender import torch
from numbarnn.cells.layout import Term
from numbarnn.cells.tracing.graph import OPERATORS, reachable
from numbarnn.weights.derived import Values

_NAMES = {"absolute": "abs", "clip": "clamp", "modulo": "remainder"}
_LINEAR_FROM = 40.0  # beyond it softplus(x) is x to PyTorch; its default, 20, shows in float64


def why_no_loop(cell, train):
    """Return why there is no loop of a cell; None if there is one."""
    if getattr(cell, "structure", None) is None:
        return "written by hand, not as equations"
    if train and (cell.noise or cell.drop_connect):
        return "draws random numbers in training, which PyTorch draws otherwise"
    return None


def operation(op, like):
    """Return PyTorch's function for an operation of `numbarnn.cells.tracing.graph`; like: a tensor of the dtype."""

    def tensors(function):  # for functions that take no numbers
        return lambda *values: function(*(v if torch.is_tensor(v) else like.new_tensor(v) for v in values))

    operations = {
        "row_sum": lambda a: a.sum(-1, keepdim=True),
        "row_max": lambda a: a.detach().amax(-1, keepdim=True),
        "stop_gradient": lambda a: a.detach(),
        "custom_derivative": tensors(_with_derivative),
        "softplus": lambda a: torch.nn.functional.softplus(a, threshold=_LINEAR_FROM),
        "normal_cdf": torch.special.ndtr,
        "divide": operator.truediv,
        "power": operator.pow,
    }
    if op in operations or op in OPERATORS:
        return operations.get(op) or getattr(operator, op)
    name = _NAMES.get(op, op)
    torch_function = getattr(torch, name, None) or getattr(torch.nn.functional, name)
    return tensors(torch_function) if op in ("maximum", "minimum", "where") else torch_function


def _with_derivative(value, *pairs):
    """Return a value with the given derivatives, from pairs (x, derivative)."""
    linear = sum(derivative.detach() * x for x, derivative in zip(pairs[::2], pairs[1::2], strict=True))
    return value.detach() + linear - linear.detach()


class _Values(Values):
    """The values of terms of tensors."""

    def parameter(self, name):
        return self.parameters[name]

    def constant(self, array):
        return self.arrays.as_tensor(array, dtype=self.dtype)

    def _array(self, term):  # the equations name sizes of a state's width only
        text = term.op != "constant" and term.data not in self._sizes and isinstance(term.data, str)
        return super()._array(Term(term.op, data="H") if text else term)


class LoopNetwork:
    """Layers of one direction of a traced cell.

    Args:
        leaves: name -> tensor, by the equations' names of parameters, such as "l0.W.i"; for one layer also "W.i".
        sizes: (layer, 0) -> letter -> int, as of a `WeightSpace`.
    """

    def __init__(self, cell, leaves, sizes):
        self.cell, self.sizes, self.leaves = cell, sizes, leaves
        nodes, self.like = reachable(cell.structure.outputs), next(iter(leaves.values()))
        self._known = {node: node.data for node in nodes if node.op == "const"}
        self._known |= {node: node.data[1].mean for node in cell.structure.noise}
        self._products = {}  # vector -> nodes of all its products; the first stands for all
        for node in nodes:
            if node.op == "product":
                self._products.setdefault(node.args[0], []).append(node)
        self._nodes = {op: [node for node in nodes if node.op == op] for op in ("state", "input", "vector", "units")}
        firsts = {nodes_of_vector[0] for nodes_of_vector in self._products.values()}
        self._work = [(node, node.op != "product" and operation(node.op, self.like), node.args)
                      for node in nodes if node.args and (node.op != "product" or node in firsts)]  # fmt: skip

    def __call__(self, x, states):
        """Return y (T, B, H) of x (T, B, I) and states, one (L, B, H) each; and the final states, a list per layer."""
        finals = []
        for layer in range(len(self.sizes)):
            x, final = self._run(x, [state[layer] for state in states], layer)
            finals.append(final)
        return x, finals

    def _run(self, x, state, layer):
        structure, linear, start = self.cell.structure, torch.nn.functional.linear, f"l{layer}."
        named = {name.removeprefix(start): leaf for name, leaf in self.leaves.items()
                 if name.startswith(start) or len(self.sizes) == 1}  # fmt: skip
        values = _Values(torch, named, self.like.dtype, self.sizes[layer, 0])

        def joined(nodes, kind, gates, heads=1):
            """Return matrices of nodes as one, their biases as one or None, and the rows of each."""
            parts = [values.of(structure.terms[node.data]) for node in nodes]
            parts = [torch.block_diag(*one.chunk(heads)) if heads > 1 else one for one in parts]
            rows = list(map(len, parts))
            names = {node: structure.biases[kind].get(gate) for gate, node in gates.items()}
            biases = [named[names[node]].expand(n) if names[node] else self.like.new_zeros(n)
                      for node, n in zip(nodes, rows, strict=True)]  # fmt: skip
            return torch.cat(parts), torch.cat(biases) if any(map(names.get, nodes)) else None, rows

        known = self._known | dict.fromkeys(self._nodes["units"], float(self.sizes[layer, 0]["H"]))
        for node in self._nodes["vector"]:
            known[node] = values.of(structure.terms[node.data]) if node.data in structure.terms else named[node.data]
        products = {vector: (own, *joined(own, "b_r", structure.all_recurrent, self.cell.heads))
                    for vector, own in self._products.items()}  # fmt: skip
        W, b, rows_of_x = joined(self._nodes["input"], "b_w", structure.gates)
        widths, ys = [part.shape[-1] for part in state], []
        widths[0] = self.sizes[layer, 0]["H"]
        for gates_of_x in linear(x, W, b).unbind(0):
            now = known | dict(zip(self._nodes["input"], gates_of_x.split(rows_of_x, -1), strict=True))
            now |= {node: state[node.data] for node in self._nodes["state"]}
            for node, function, arguments in self._work:
                if function:
                    now[node] = function(*[now[argument] for argument in arguments])
                else:
                    own, matrix, bias, rows = products[arguments[0]]
                    vector = now[arguments[0]].expand(-1, matrix.shape[1])
                    now |= dict(zip(own, linear(vector, matrix, bias).split(rows, -1), strict=True))
            shapes = [(len(state[0]), width) for width in widths]
            state = [value.expand(shape) if hasattr(value := now[node], "expand") else self.like.new_full(shape, value)
                     for node, shape in zip(structure.outputs, shapes, strict=True)]  # fmt: skip
            if structure.projection:
                state[0] = linear(state[0], values.of(structure.terms[structure.projection]))
            ys.append(state[0])
        return torch.stack(ys), state
