"""`cell`: a function of equations becomes a `Cell`."""

import ast
import inspect
import textwrap
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, partial, reduce, update_wrapper
from importlib import import_module
from pickle import PicklingError, UnpicklingError
from typing import Any, overload

from numbarnn.cells.definition import Cell
from numbarnn.cells.layout import listed, parameters_in, term_text
from numbarnn.cells.tracing.errors import CellError, error
from numbarnn.cells.tracing.graph import SAME_VALUE, Graph, reachable
from numbarnn.cells.tracing.matrices import Parameters
from numbarnn.cells.tracing.mistakes import check_names_of_matrices, refuse_changed_constants, refuse_seeded_generators
from numbarnn.cells.tracing.parameters import check_names, layout_of
from numbarnn.cells.tracing.saving import CHOICES
from numbarnn.cells.tracing.source import assemble
from numbarnn.cells.tracing.structure import Structure, split
from numbarnn.cells.tracing.trace import Trace
from numbarnn.cells.tracing.values import Input, Traced, Value, is_condition, step, words

MOST_OPERATIONS = 5000
_PARAMETERS = ("p", "params")
_FORM = "expected (x, h, ..., p): the input, the states, the parameters; then hyperparameters with defaults"


@dataclass(frozen=True, eq=False, repr=False)
class TracedCell(Cell):
    """A `Cell` made of equations by `cell`.

    Attributes:
        definition: the function of equations that the cell was made of.
        equations: their source.
        hyperparameters: name -> value.
        save: "gates" or "minimal".
        structure: which parameters are gates, biases and per-unit parameters.
        origin: (function, arguments) that return it, of a cell whose equations cannot be found by a name of their own.
        counts: the name of the last state, where that is the number of the step (`numbarnn.step`); else None.
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
            f"cell {self.name} is not a function: within other equations write {self.name}.function(x, h, ..., p), its "
            f"equations; a layer of it is numbarnn.RNN({self.name}, input_size, hidden_size)"
        )

    @cached_property
    def function(self) -> Callable[..., Any]:
        """The equations with the cell's hyperparameters; run on NumPy arrays they compute the same."""
        takes = inspect.signature(self.definition).parameters
        if all(takes[name].default is value for name, value in self.hyperparameters.items()):
            return self.definition
        own = partial(self.definition, **self.hyperparameters)
        own.__signature__ = inspect.signature(own)
        return update_wrapper(own, self.definition)

    @property
    def options(self):
        """What `cell` is given to make it of its function."""
        return {"name": self.name, "save": self.save, **self.hyperparameters}

    @property
    def own_derivatives(self):
        """The names of functions by which the equations say other derivatives than their values have."""
        return tuple(sorted(SAME_VALUE.intersection(node.op for node in reachable(self.structure.outputs))))

    def __reduce__(self):
        """Pickled by the name of its function, as functions are, and how it was made of that."""
        if self.origin is not None:
            return self.origin
        place = self.definition.__module__, self.definition.__qualname__
        found = _found(*place)
        if getattr(found, "definition", found) is not self.definition:
            raise PicklingError(
                f"cell {self.name} cannot be pickled: its equations cannot be found as {'.'.join(place)}. Define it at "
                "the top of a module; or keep layer.state_dict(), and load it into a layer of the same cell"
            )
        return _made_again, (*place, self.equations, self.options)


def _found(module, name):
    """What a name of a module, which may have dots, stands for; None if there is nothing."""
    try:
        return reduce(getattr, name.split("."), import_module(module))
    except (ImportError, AttributeError):
        return None


def _made_again(module, name, equations, options):
    """The cell of equations that stand under a name, as it was when pickled; if it stands there, the very cell."""
    found = _found(module, name)
    if found is None:
        raise UnpicklingError(
            f"cell {options['name']} cannot be made again: {module}.{name}, its equations, is not found"
        )
    if not isinstance(found, TracedCell) or found.options != options:
        found = cell(found, **options)
    if found.equations != equations:
        raise UnpicklingError(
            f"cell {options['name']} cannot be made again: {module}.{name} has other equations than when it was pickled"
        )
    return found


@overload
def cell(
    function: Callable[..., Any] | TracedCell, *, save: str = "gates", name: str | None = None, **hyperparameters: Any
) -> TracedCell: ...


@overload
def cell(
    function: None = None, *, save: str = "gates", name: str | None = None, **hyperparameters: Any
) -> Callable[[Callable[..., Any]], TracedCell]: ...


def cell(function=None, *, save="gates", name=None, **hyperparameters):
    """Make a `Cell` of a function of equations, `f(x, h, ..., p)`; also as a decorator, with or without arguments.

        @cell
        def rnn(x, h, p):
            return tanh(p.W.h @ x + p.R.h @ h + p.b.h)

    The function takes the input x, the states, of which the first is the output, and p, whose attributes are the
    parameters: matrices where they stand left of @, one number per unit elsewhere, one number per layer if they are
    called p.scalar.name. It returns the new states. It is run once, on values that note what is computed; then the
    backward is derived, and source of both is written, which `show` prints.

    Left of @ may stand an expression of matrices: `(p.R.a - p.R.a.T - p.scalar.gamma * eye()) @ h`. It is derived once
    per call, in a pass over the matrix or two, and steps multiply with the result; of `columns(p.U, 8) @ (p.V @ h)`
    with a full matrix U V, too. A matrix that multiplies several vectors is copied for each. Where x itself stands, as
    in `g * x`, input_size must be H. As a state, `return h, x`, it may have any size; so may states of which
    `sized(s, 40)` says it. Steps then cost as much as if all states had as many units as the largest. An h of another
    size is a projection, `return p.P.h @ m, c`.

    Args:
        function: the equations; or a cell made of some, to make it anew with other options.
        save: what forward saves for backward. "gates": values of functions such as sigmoid, so that they are not
            computed twice; "minimal": as few values as possible.
        name: of the cell; by default the function's, with hyperparameters given here.
        hyperparameters: values for what the function takes after p, in place of its defaults: Python values, numbers as
            a rule, which are constants of the cell: compiled code has them, but for rates of `dropout` and `zoneout`,
            which it takes as arguments. One that is `numbarnn.step` gets the number of the step.

    Raises:
        CellError: the equations cannot become a cell; the message shows the line and the cure.
        TypeError, ValueError: an argument is none that `cell` or the function takes.
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
        raise error(f"{counts} is a state, and the number of the step; take two names", source_lines.definition)
    states += (counts,) * (counts is not None)
    structure = _traced(function, input_name, states, chosen, source_lines)
    generated = assemble(name, states, structure, save, chosen, source_lines.statements())
    # after `assemble`, which may put gates into another order
    layout = layout_of(structure, source_lines.last_return, input_name)
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


def _signature(function, given, place):
    """(name of the input, names of states, hyperparameter -> value) of a function of equations, which stands there."""
    called = _name_of(function)
    takes = list(inspect.signature(function).parameters.values())
    names = [parameter.name for parameter in takes]
    if any(parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD) for parameter in takes):
        raise error(f"{called} takes any arguments (*, **); {_FORM}", place)
    where_p = next((k for k, name in enumerate(names) if name in _PARAMETERS), None)
    if where_p is None or where_p < 2:
        raise error(f"{called} takes ({', '.join(names)}); {_FORM}", place)
    by_name = [parameter.name for parameter in takes[: where_p + 1] if parameter.kind is parameter.KEYWORD_ONLY]
    if by_name:
        raise error(f"{called} takes {', '.join(by_name)} by name alone (behind *); {_FORM}", place)
    defaults = {parameter.name: parameter.default for parameter in takes[where_p + 1 :]}
    unknown = given.keys() - defaults.keys()
    if unknown:
        raise TypeError(
            f"{called} has no hyperparameter {', '.join(sorted(unknown))}; it has "
            f"{', '.join(defaults) or 'none'} (they stand after p)"
        )
    chosen = defaults | given
    missing = [name for name, value in chosen.items() if value is inspect.Parameter.empty]
    if missing:
        raise TypeError(f"{called} needs a value of {', '.join(missing)}: cell({missing[0]}=...), or a default")
    return names[0], tuple(names[1:where_p]), chosen


def _traced(function, input_name, states, hyperparameters, source_lines):
    """The `Structure` of a function of equations: run once on traced values, and again where it has constants, to see
    that these are the same."""
    counts = any(value is step for value in hyperparameters.values())
    own, place = len(states) - counts, source_lines.last_return  # `own`: states that the function takes and returns

    def run():
        graph = Graph()
        trace = Trace(graph)
        values = [Value(trace, graph.leaf("state", number)) for number in range(len(states))]
        for value, state in zip(values, states, strict=True):
            value._node.name = state
        given = {key: values[-1] if value is step else value for key, value in hyperparameters.items()}
        return trace, values, function(Input(trace, input_name), *values[:own], Parameters(trace), **given)

    trace, values, returned = run()
    if trace.constants:
        refuse_changed_constants(trace.constants, run()[0].constants)
        refuse_seeded_generators(function)
    new_states = _new_states(trace, returned, states[:own], place)
    check_names_of_matrices(new_states, trace.kinds)
    outputs = [*new_states, *(trace.node(value + 1) for value in values[own:])]
    structure = split(outputs, trace)
    nodes = reachable(structure.outputs)
    operations = sum(bool(node.args) for node in nodes)
    if operations > MOST_OPERATIONS:
        raise error(
            f"{operations:,} operations per unit and step; at most {MOST_OPERATIONS:,} are compiled. A matrix, or a "
            "sum over units, does more in one",
            place,
        )
    if not structure.gates:
        raise error("nothing that is returned depends on x; expected a product p.W.name @ x at least", place)
    vectors = [node.data for node in nodes if node.op == "vector"]
    check_names(vectors, place)
    products = [node.data for node in nodes if node.op in ("input", "product")]
    biases = [name for own in structure.biases.values() for name in own.values()]
    labels = [*products, *([structure.projection] if structure.projection else [])]
    used = {*vectors, *biases, *parameters_in([structure.terms[label] for label in labels])}
    structure.unused = tuple(name for name in trace.kinds if name not in used)
    _set_options(structure, trace.options, place)
    return structure


def _set_options(structure, options, place):
    """The structure's heads and drop_connect, from those of each matrix."""
    matrices = [node.data for node in structure.all_recurrent.values()]
    heads = {name: options[name][0] for name in matrices}
    if len(set(heads.values())) > 1:
        raise error(
            "matrices of different numbers of heads: "
            + ", ".join(f"{term_text(structure.terms[name])} {count}" for name, count in heads.items())
            + "; all that multiply states or what is computed from them must have one number",
            place,
        )
    if structure.projection and options[structure.projection] != (1, 0.0):
        raise error(
            f"p.{structure.projection} projects to the first state: leave out its heads and drop_connect", place
        )
    structure.heads = max(heads.values(), default=1)
    rates = tuple(options[name][1] for name in matrices)
    structure.drop_connect = rates if any(rates) else ()


def _new_states(trace, returned, states, place):
    """The nodes of what the equations returned."""
    values = list(returned) if isinstance(returned, (tuple, list)) else [returned]
    if returned is None or len(values) != len(states):
        came = "nothing" if returned is None else f"{len(values)} value{'s' if len(values) != 1 else ''}"
        raise error(
            f"{came} returned; expected the new value of each state, in the order of the arguments: "
            f"{', '.join(states)}",
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
    """The text of a function of equations, and where its definition, statements and last return stand."""

    def __init__(self, function):
        code = getattr(inspect.unwrap(function), "__code__", None)
        self.file, self._first = (code.co_filename, code.co_firstlineno) if code else ("<unknown>", 1)
        self.definition = self.last_return = self.file, self._first
        self.text, self._nodes = "", []
        try:
            self.text = textwrap.dedent(inspect.getsource(function))
            self._nodes = list(ast.walk(ast.parse(self.text)))
        except (OSError, TypeError, SyntaxError):  # there is none, or it is cut out of a larger expression
            return
        if lines := [node.lineno for node in self._nodes if isinstance(node, ast.Return)]:
            self.last_return = self.file, self._first + max(lines) - 1

    def statements(self):
        """(file, line) -> the simple statement that stands there, on one line."""
        found = {}
        for node in self._nodes:
            if isinstance(node, ast.stmt) and not hasattr(node, "body"):
                text = " ".join(ast.get_source_segment(self.text, node).split())
                for line in range(node.lineno, node.end_lineno + 1):
                    found[(self.file, self._first + line - 1)] = text
        return found
