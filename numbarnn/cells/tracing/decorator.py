"""Make a `Cell` from a function of equations: the decorator `numbarnn.cell`."""

import ast
import inspect
import textwrap
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, partial, reduce, update_wrapper
from hashlib import sha256
from importlib import import_module
from pickle import PicklingError, UnpicklingError
from typing import Any, overload

from numbarnn.cells.definition import Cell
from numbarnn.cells.layout import PartOfX, constants_in, listed, parameters_in, term_text
from numbarnn.cells.tracing.errors import CellError, error
from numbarnn.cells.tracing.graph import SAME_VALUE, Graph, reachable
from numbarnn.cells.tracing.matrices import Parameters
from numbarnn.cells.tracing.mistakes import check_names_of_matrices, refuse_changed_constants, refuse_seeded_generators
from numbarnn.cells.tracing.parameters import check_names, layout_of
from numbarnn.cells.tracing.saving import CHOICES
from numbarnn.cells.tracing.source import assemble
from numbarnn.cells.tracing.structure import Structure, split
from numbarnn.cells.tracing.trace import Trace
from numbarnn.cells.tracing.values import Input, SideInput, Traced, Value, is_condition, step, words

MOST_OPERATIONS = 5000
_PARAMETERS = ("p", "params")
_FORM = "expected (x, h, ..., p): the input, the states, the parameters; then hyperparameters with defaults"


@dataclass(frozen=True, eq=False, repr=False)
class TracedCell(Cell):
    """A `Cell` made from equations by `cell`.

    Attributes:
        definition: the function of equations. equations: its source, to print. hyperparameters: name -> value.
        save: "gates" or "minimal". structure: the parts of the equations, see `Structure`.
        origin: (function, arguments) that make the cell again if its equations cannot be found by name, or None.
        counts: name of the state that is the number of the step (`numbarnn.step`), or None.
    """

    definition: Callable[..., Any] | None = None
    equations: str = ""
    hyperparameters: dict[str, Any] = field(default_factory=dict)
    save: str = "gates"
    structure: Structure | None = None
    origin: tuple | None = None
    counts: str | None = None

    def __repr__(self):
        named = listed(self.parameters.shapes("P" if self.projected else "H", self.heads))
        return f"<cell {self.name}, states {' '.join(self.states)}, parameters {', '.join(named)}>"

    def __call__(self, *_, **__):
        raise TypeError(
            f"cell {self.name} is not a function: in other equations write {self.name}.function(x, h, ..., p). A layer "
            f"is numbarnn.RNN({self.name}, input_size, hidden_size)"
        )

    @cached_property
    def function(self) -> Callable[..., Any]:
        """Return the equations with the cell's hyperparameters, to run on NumPy arrays or in other equations."""
        takes = inspect.signature(self.definition).parameters
        if all(takes[name].default is value for name, value in self.hyperparameters.items()):
            return self.definition
        own = partial(self.definition, **self.hyperparameters)
        own.__signature__ = inspect.signature(own)
        return update_wrapper(own, self.definition)

    @property
    def options(self):
        """The keyword arguments of `cell` that make this cell from its function."""
        return {"name": self.name, "save": self.save, **self.hyperparameters}

    @property
    def own_derivatives(self):
        """Names of the functions that override derivatives, such as "stop_gradient"."""
        return tuple(sorted(SAME_VALUE.intersection(node.op for node in reachable(self.structure.outputs))))

    @cached_property
    def digest(self):
        """A digest of what the equations compute, whatever their variables, order and comments are."""
        numbers, described, terms = {}, [], self.structure.terms
        for node in reachable(self.structure.outputs):
            numbers[node] = len(numbers)
            data = repr(node.data)
            if node.op in ("input", "product", "vector") and node.data in terms:
                data = term_text(terms[node.data])
                arrays = (one.array for one in constants_in((terms[node.data],)))
                data += "".join(sha256(array.tobytes()).hexdigest() for array in arrays if array is not None)
            described.append((node.op, data, [numbers[part] for part in node.args]))
        whole = (
            described,
            [numbers[node] for node in self.structure.outputs],
            self.structure.projection,
            self.structure.heads,
        )
        whole += (dict(self.parameters.side),) if self.parameters.side else ()
        return sha256(repr(whole).encode()).hexdigest()[:16]

    def __reduce__(self):
        """Pickle the name of the function, as pickle does for functions, and the cell's options."""
        if self.origin is not None:
            return self.origin
        place = self.definition.__module__, self.definition.__qualname__
        found = _found(*place)
        if getattr(found, "definition", found) is not self.definition:
            raise PicklingError(
                f"cell {self.name} cannot be pickled: its equations cannot be found as {'.'.join(place)}. Define it at "
                "the top of a module, or save layer.state_dict()"
            )
        return _made_again, (*place, self.equations, self.options)


def _found(module, name):
    """Return the object with a dotted name in a module, or None."""
    try:
        return reduce(getattr, name.split("."), import_module(module))
    except (ImportError, AttributeError):
        return None


def _made_again(module, name, equations, options):
    """Unpickle a cell: find its equations by name; UnpicklingError if they are not found or have changed."""
    definition = _found(module, name)
    if definition is None:
        raise UnpicklingError(
            f"cell {options['name']} cannot be unpickled: its equations, {module}.{name}, are not found"
        )
    if not isinstance(definition, TracedCell) or definition.options != options:
        definition = cell(definition, **options)
    if definition.equations != equations:
        raise UnpicklingError(
            f"cell {options['name']} cannot be unpickled: the equations of {module}.{name} have changed"
        )
    return definition


@overload
def cell(
    function: Callable[..., Any] | TracedCell, *, save: str = "gates", name: str | None = None, **hyperparameters: Any
) -> TracedCell: ...


@overload
def cell(
    function: None = None, *, save: str = "gates", name: str | None = None, **hyperparameters: Any
) -> Callable[[Callable[..., Any]], TracedCell]: ...


def cell(function=None, *, save="gates", name=None, **hyperparameters):
    """Make a cell from the equations of one step, `f(x, h, ..., p)`; a decorator, with or without arguments.

    The function takes the input x, the states (the first is the output h), and p with the parameters. It returns the
    new states. A parameter left of @ is a matrix, p.scalar.name is one number per layer, and any other is one number
    per unit. The function runs once, on symbolic values; numbarnn derives the backward. `show` prints the result.

    An expression of matrices left of @, such as `(p.R.a - p.R.a.T - p.scalar.gamma * eye()) @ h`, is computed once per
    call. If x is used element by element, as in `g * x`, input_size must be H. A state that is x (`return h, x`) or
    `sized(s, 40)` has another size than h; steps then cost as if all states had the largest size. `return p.P.h @ m, c`
    projects h.

    Args:
        function: the equations, or a cell, to make it again with other options.
        save: what forward saves for backward. "gates" saves the values of functions such as sigmoid; "minimal" saves as
            few values as possible and computes the others again.
        name: name of the cell. Default: the function's, with the hyperparameters.
        hyperparameters: values for the function's arguments after p, in place of their defaults. They are constants of
            the cell, but for `numbarnn.step`, the number of the step, and `numbarnn.side(width)`, a further input.

    Returns:
        the cell, for `numbarnn.RNN(cell, ...)`.

    Raises:
        CellError: the equations cannot become a cell; the message shows the line and the cure.
        TypeError, ValueError: an argument of `cell` or a hyperparameter is unknown or has a wrong value.

    Example:
        >>> import numbarnn as nr
        >>> @nr.cell
        ... def elman(x, h, p):
        ...     return nr.tanh(p.W.h @ x + p.R.h @ h + p.b.h)
        >>> nr.RNN(elman, 8, 16, device="cpu")
        RNN(elman, 8, 16, num_layers=1, dtype='float32', device='cpu')
    """
    if function is None:
        return partial(cell, save=save, name=name, **hyperparameters)
    if isinstance(function, TracedCell):
        hyperparameters = function.hyperparameters | hyperparameters
        function = function.definition
    if not callable(function) or isinstance(function, type):
        raise TypeError(f"cell takes a function of equations f(x, h, ..., p), not {words(function)}")
    if save not in CHOICES:
        raise ValueError(f"save must be 'gates' or 'minimal', not {save!r}")
    source_lines = _Source(function)
    input_name, states, chosen = _signature(function, hyperparameters, source_lines.definition)
    if name is None:
        texts = [f"{key}_{getattr(value, '__name__', None) or repr(value)}" for key, value in hyperparameters.items()]
        name = "_".join([_name_of(function), *texts])
    counts = next((key for key, value in chosen.items() if value is step), None)
    if counts in states:
        raise error(f"{counts} is a state, and the number of the step. Take two names", source_lines.definition)
    states += (counts,) * (counts is not None)
    side = {key: value.width for key, value in chosen.items() if isinstance(value, SideInput)}
    if clash := {"H", "I", "P"}.intersection(side):
        raise error(f"a side input cannot be called {min(clash)}. Take another name", source_lines.definition)
    structure = _traced(function, input_name, states, chosen, side, source_lines)
    generated = assemble(name, states, structure, save, chosen, source_lines.statements())
    # after `assemble`, which may reorder gates
    layout = layout_of(structure, source_lines.last_return, input_name, side)
    return TracedCell(
        name, tuple(structure.gates), states, **generated, recurrent=tuple(structure.recurrent),
        per_unit=tuple(structure.per_unit), noise=tuple(node.data[1] for node in structure.noise),
        heads=structure.heads, drop_connect=structure.drop_connect,
        initial=tuple((key, value) for key, value in structure.initial.items() if key in layout.shapes()),
        projected=structure.projection is not None, bias=structure.bias, general=True, layout=layout,
        definition=function, equations=source_lines.text, hyperparameters=chosen, save=save, structure=structure,
        counts=counts,
    )  # fmt: skip


def _name_of(function):
    name = getattr(function, "__name__", "cell")
    return name if name.isidentifier() else "cell"  # of a lambda


def _signature(function, hyperparameters, place):
    """Return (name of the input, names of states, hyperparameter -> value). place: the function's, for errors."""
    called, signature = _name_of(function), inspect.signature(function)
    takes = list(signature.parameters.values())
    names = [parameter.name for parameter in takes]
    where_p = next((k for k, name in enumerate(names) if name in _PARAMETERS), 0)
    by_name = [one for one in takes[: where_p + 1] if one.kind is one.KEYWORD_ONLY]
    if where_p < 2 or by_name or any(one.kind in (one.VAR_POSITIONAL, one.VAR_KEYWORD) for one in takes):
        raise error(f"{called} takes {signature}; {_FORM}", place)
    defaults = {parameter.name: parameter.default for parameter in takes[where_p + 1 :]}
    if unknown := hyperparameters.keys() - defaults.keys():
        known = ", ".join(defaults) or "none"
        raise TypeError(f"{called} has no hyperparameter {', '.join(sorted(unknown))}; it has {known} (they follow p)")
    chosen = defaults | hyperparameters
    if missing := [name for name, value in chosen.items() if value is inspect.Parameter.empty]:
        raise TypeError(
            f"{called} needs a value of {', '.join(missing)}: cell({missing[0]}=...), or a default. An input of each "
            f"step besides {names[0]} is {missing[0]}=numbarnn.side(width)"
        )
    return names[0], tuple(names[1:where_p]), chosen


def _traced(function, input_name, states, hyperparameters, side, source_lines):
    """Run the equations on traced values and return their `Structure`.

    If the equations have constants they run twice, to find random numbers."""
    counts = any(value is step for value in hyperparameters.values())
    num_returned, place = len(states) - counts, source_lines.last_return  # without the number of the step

    def run():
        graph = Graph()
        trace = Trace(graph)
        values = [Value(trace, graph.leaf("state", number)) for number in range(len(states))]
        for value, state in zip(values, states, strict=True):
            value._node.name = state
        keywords = {key: values[-1] if value is step else value for key, value in hyperparameters.items()}
        start, total = 0, sum(side.values())
        for key, width in side.items():
            keywords[key], start = Input(trace, key, PartOfX(key, start, width, total)), start + width
        x = Input(trace, input_name, PartOfX(input_name, None, None, total) if side else None)
        with trace.running():
            return trace, values, function(x, *values[:num_returned], Parameters(trace), **keywords)

    trace, values, returned = run()
    if trace.constants:
        refuse_changed_constants(trace.constants, run()[0].constants)
        refuse_seeded_generators(function)
    new_states = _new_states(trace, returned, states[:num_returned], place)
    check_names_of_matrices(new_states, trace.kinds)
    outputs = [*new_states, *(trace.node(value + 1) for value in values[num_returned:])]
    structure = split(outputs, trace)
    nodes = reachable(structure.outputs)
    operations = sum(bool(node.args) for node in nodes)
    if operations > MOST_OPERATIONS:
        raise error(
            f"the equations have {operations:,} operations per unit and step, but at most {MOST_OPERATIONS:,} are "
            "compiled. Use a matrix, or a sum over units",
            place,
        )
    if not structure.gates:
        raise error("nothing that is returned depends on x; expected a product p.W.name @ x at least", place)
    vectors = [node.data for node in nodes if node.op == "vector"]
    check_names(vectors, place)
    products = [node.data for node in nodes if node.op in ("input", "product")]
    biases = [name for by_gate in structure.biases.values() for name in by_gate.values()]
    labels = [*products, *([structure.projection] if structure.projection else [])]
    used = {*vectors, *biases, *parameters_in([structure.terms[label] for label in labels])}
    structure.unused = tuple(name for name in trace.kinds if name not in used)
    _set_options(structure, trace.options, place)
    return structure


def _set_options(structure, options, place):
    """Set the structure's heads and drop_connect; CellError if its matrices do not have the same heads."""
    matrices = [node.data for node in structure.all_recurrent.values()]
    heads = {name: options[name][0] for name in matrices}
    if len(set(heads.values())) > 1:
        raise error(
            "all matrices that multiply states must have one number of heads, got "
            + ", ".join(f"{term_text(structure.terms[name])} {count}" for name, count in heads.items()),
            place,
        )
    if structure.projection and options[structure.projection] != (1, 0.0):
        raise error(
            f"p.{structure.projection} projects to the first state. Leave out its heads and drop_connect", place
        )
    structure.heads = max(heads.values(), default=1)
    rates = tuple(options[name][1] for name in matrices)
    structure.drop_connect = rates if any(rates) else ()


def _new_states(trace, returned, states, place):
    """Return the nodes of the new states; CellError unless the equations returned one value per state."""
    values = list(returned) if isinstance(returned, (tuple, list)) else [returned]
    if returned is None or len(values) != len(states):
        got = "nothing" if returned is None else f"{len(values)} value{'s' if len(values) != 1 else ''}"
        raise error(
            f"{got} returned; expected the new value of each state, in the order of the arguments: {', '.join(states)}",
            place,
        )
    for value, state in zip(values, states, strict=True):
        if not isinstance(value, Traced) or (isinstance(value, Value) and is_condition(value._node)):
            raise error(
                f"the new {state} is {words(value)}; expected what is computed from x, states, parameters", place
            )
    try:
        return [trace.node(value) for value in values]
    except CellError as problem:
        raise error(str(problem).split("\n")[0], place) from None


class _Source:
    """The source of a function of equations, and the places (file, line) of its definition and last return."""

    def __init__(self, function):
        code = getattr(inspect.unwrap(function), "__code__", None)
        self.file, self._first = (code.co_filename, code.co_firstlineno) if code else ("<unknown>", 1)
        self.definition = self.last_return = self.file, self._first
        self.text, self._nodes = "", []
        try:
            self.text = textwrap.dedent(inspect.getsource(function))
            self._nodes = list(ast.walk(ast.parse(self.text)))
        except (OSError, TypeError, SyntaxError):  # no source, or a lambda within a larger expression
            return
        if lines := [node.lineno for node in self._nodes if isinstance(node, ast.Return)]:
            self.last_return = self.file, self._first + max(lines) - 1

    def statements(self):
        """Return (file, line) -> source, as one line, of the simple statement on this line."""
        texts = {}
        for node in self._nodes:
            if isinstance(node, ast.stmt) and not hasattr(node, "body"):
                text = " ".join(ast.get_source_segment(self.text, node).split())
                for line in range(node.lineno, node.end_lineno + 1):
                    texts[(self.file, self._first + line - 1)] = text
        return texts
