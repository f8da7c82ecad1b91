"""A general cell's functions in a plain loop over time: NumPy arrays (B, H) where an engine has one unit's numbers.

One layer, one direction. Parameters have the layer's names without their ending: weight_ih (G*H, I), weight_hh
(A*H, H), weight_hr, bias_ih, bias_hh, and vectors (H,); a missing one is zero, as are biases of gates
without one. See `numbarnn.cells.definition` for who does what.
"""

import ctypes
from functools import cache
from itertools import count

import numpy as np

from numbarnn import engines
from numbarnn.cells.definition import Given
from numbarnn.compile import native, types
from numbarnn.compile.plain import module_of
from numbarnn.compile.specialise import specialise
from numbarnn.compile.translate import call
from numbarnn.compile.types import Value, flat, with_each
from numbarnn.engines.cpu.records import from_python
from numbarnn.engines.cpu.vectors import numbers_at
from numbarnn.weights import WeightSpace, parameter_name
from numbarnn.weights.formed import FormedWeights
from numbarnn.weights.space import PER_UNIT

_numbers = count()


def type_of(value):
    """The type of a NumPy number, or of a tuple of them."""
    return each(value, lambda one: types.from_dtype(np.asarray(one).dtype))


def each(value, change):
    """The same tuple, which may be nested, with each number changed; or a changed number."""
    if not isinstance(value, tuple):
        return change(value)
    parts = [each(part, change) for part in value]
    return value._make(parts) if hasattr(value, "_fields") else tuple(parts)


@cache
def compiled(function, kinds):
    """(machine code of a function that is for compiled code only, what types it returns, LLVM's module of it): of two
    addresses, of its arguments, numbers of one type, and of its results."""
    (number, *others), returned = {one for one in flat_types(kinds)} or {types.float32}, []
    assert not others, "numbers of one type"

    def write(builder, addresses):
        given, out = (builder.inttoptr(one.llvm, number.llvm.as_pointer()) for one in addresses)
        places = count()

        def at(pointer):
            return builder.gep(pointer, [types.int64.llvm(next(places))])

        def load(one):
            return each(one, lambda kind: Value(kind, builder.load(at(given))))

        value = call(function, [load(one) for one in kinds], builder)
        places = count()
        for one in flat(value):
            assert one.type == number
            builder.store(one.llvm, at(out))
        returned.append(value)

    symbol = f"test.{next(_numbers)}"
    module = module_of(symbol, [types.int64] * 2, write)
    code = native.compiled(module)
    called = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64)(native.loaded(code, symbol))
    return called, with_each(returned[0], lambda one: one.type), module


def flat_types(kinds):
    """The types in a tuple of them, which may be nested."""
    return [one for part in kinds for one in flat_types(part)] if isinstance(kinds, tuple) else [kinds]


def types_inside(function, dtype, counts):
    """Names of the types of numbers that compiled code of a function has, of tuples of so many numbers, some perhaps in
    a group of tuples."""
    number = types.from_dtype(np.dtype(dtype))
    _, returned, module = compiled(function, each(tuple(counts), lambda count: (number,) * count))
    assert set(flat_types(returned)) == {number}
    return {name for name, llvm in (("float32", "float "), ("float64", "double ")) if llvm in str(module)}


def functions_of(cell):
    """(each of the cell's functions, how many numbers each of its arguments has)."""
    G, A, S, K = cell.num_gates, cell.num_ah, cell.num_states, cell.num_saved
    forward, backward = (G, A, S), (K, S, S, S)
    if cell.general:
        seen, noise = cell.num_sums + (cell.num_sums > 0), len(cell.noise)
        given = Given(cell.num_per_unit, seen, noise)
        forward, backward = (*forward, given), (*backward, cell.num_products, cell.num_sums, given)
    yield from ((cell.forward, forward), (cell.backward, backward))
    for stage in cell.stages:
        yield from ((stage.forward, forward), (stage.backward, backward))


def flat_numbers(result):
    """The scalars of a (nested) tuple."""
    return [value for part in result for value in flat_numbers(part)] if isinstance(result, tuple) else [result]


def callable_from_python(function):
    """A function that is for compiled code only (`numbarnn.compile.specialise.jit`), with a way in: of numbers of one
    dtype, and tuples of them."""

    def called(*arguments):
        machine_code, returned, _ = compiled(function, type_of(arguments))
        numbers = flat_numbers(arguments)
        given = np.array(numbers or [0], np.asarray(numbers[0]).dtype)
        out = np.zeros(100, given.dtype)
        machine_code(given.ctypes.data, out.ctypes.data)
        results = iter(out)

        def take(one):
            return tuple(map(take, one)) if isinstance(one, tuple) else next(results)

        return take(returned)

    return called


@cache
def mapped(function, dtype="float32"):
    """A function of one number over an array, as the CPU engine's loops have it."""
    device_function, zero = specialise(function, dtype, "cpu"), np.dtype(dtype).type(0)

    @from_python
    def over(x, out, size):
        given, found = numbers_at(zero, x), numbers_at(zero, out)
        for i in range(size):
            found[i] = device_function(given[i])

    def apply(x):
        out, x = np.full_like(x, np.nan), np.ascontiguousarray(x)
        over(x.ctypes.data, out.ctypes.data, x.size)
        return out

    return apply


def whole(values, like):
    """Arrays of one shape: a value that does not depend on the unit, such as 0, may be a number."""
    return tuple(np.broadcast_to(value, like.shape) for value in values)


class Steps:
    """The cell with its parameters; `forward`, then `backward`.

    recurrent   which gates of ah multiply h
    products    which gates of ah multiply each stage's vector; none of a stage of sums

    Random numbers are as in inference.
    """

    def __init__(self, cell, parameters, hidden):
        self.cell, self.hidden, self.formed = cell, hidden, None
        self.parameters = parameters = self.read_by_kernels(parameters)
        self.products, first = [], cell.num_recurrent
        self.recurrent = slice(0, cell.num_recurrent)
        for stage in cell.stages:
            self.products.append(slice(first, first + len(stage.gates)))
            first += len(stage.gates)
        self.W = self.gates("weight_ih", cell.num_gates)
        self.R = self.gates("weight_hh", first)
        self.b_w, self.b_r = self.gates("bias_ih", cell.num_gates), self.gates("bias_hh", first)
        self.W_hr = parameters.get("weight_hr")
        self.per_unit = tuple(parameters[name] for name in cell.per_unit)
        self.noise = tuple(noise.mean for noise in cell.noise)

    def read_by_kernels(self, parameters):
        """What the cell's functions are given, by the same names: where it is formed of the parameters, that."""
        cell = self.cell
        if not cell.parameters.formed:
            return parameters
        inputs = parameters.get("weight_ih", np.empty((0, self.hidden))).shape[1]
        width = len(parameters["weight_hr"]) if cell.projected else 0
        self.space = WeightSpace(
            cell.num_gates, inputs, (self.hidden,), 1, cell.bias, width, num_ah=cell.num_ah, per_unit=cell.per_unit,
            layout=cell.parameters,
        )  # fmt: skip
        flat = np.concatenate([parameters[part.name.removesuffix("_l0")].ravel() for part in self.space.parameters])
        self.formed = FormedWeights(self.space, engines.get("cpu"), flat, "float64", in_one=False)
        self.formed.form()
        return self._by_name(self.space.pseudo_layer(flat, 0, 0, self.formed.formed))

    def _by_name(self, kinds):
        names, rows = self.cell.per_unit, kinds.get(PER_UNIT, np.empty(0)).reshape(-1, self.hidden)
        own = {name.removesuffix("_l0"): kinds[kind] for kind in kinds if kind != PER_UNIT
               for name in [parameter_name(kind, 0, 0)]}  # fmt: skip
        return own | dict(zip(names, rows, strict=True))

    def pulled_back(self, gradients):
        """The gradients of the parameters, from those of what the cell's functions are given."""
        if self.formed is None:
            return gradients
        dw, d_formed = np.full(self.space.size, np.nan), np.full(self.space.formed_size, np.nan)
        for name, array in self._by_name(self.space.pseudo_layer(dw, 0, 0, d_formed)).items():
            array[...] = gradients[name]
        self.formed.pull_back(dw, d_formed, accumulate=False)
        return {name.removesuffix("_l0"): array for name, array in self.space.views(dw).items()}

    def gates(self, name, count):
        """A parameter as (gates, H, ...), or zeros."""
        found = self.parameters.get(name)
        return [0.0] * count if found is None else found.reshape(count, self.hidden, *found.shape[1:])

    def multiply(self, ah, vector, rows):
        """Fill in the gates of ah that multiply the vector."""
        for gate in range(rows.start, rows.stop):
            ah[gate] = np.broadcast_to(vector, (len(vector), self.hidden)) @ self.R[gate].T + self.b_r[gate]

    @staticmethod
    def totals(terms, like):
        """The sums over units, (B, 1) each."""
        return [np.sum(term, axis=1, keepdims=True) for term in whole(terms, like)]

    def forward(self, x, states):
        """y (T, B, H) and the final states; x (T, B, I), states one (B, H) each."""
        cell, self.x, self.tape, outputs = self.cell, x, [], []
        states = tuple(states)
        h = states[0]
        for x_t in x:
            ax = tuple(x_t @ W.T + b for W, b in zip(self.W, self.b_w, strict=True))
            ah, inner, sums = [None] * len(self.R), [], [float(self.hidden)] if cell.num_sums else []
            sums += [None] * cell.num_sums
            self.multiply(ah, h, self.recurrent)
            for number, (stage, rows) in enumerate(zip(cell.stages, self.products, strict=True)):
                found = stage.forward(ax, tuple(ah), states, Given(self.per_unit, tuple(sums), self.noise))
                if stage.sums:
                    first = 1 + cell.first_sum(number)
                    totals = [np.max(f, axis=1, keepdims=True) for f in whole(found, states[0])] if stage.largest else (
                        self.totals(found, states[0]))  # fmt: skip
                    sums[first : first + len(stage.sums)] = totals
                else:
                    inner.append(found)
                    self.multiply(ah, found, rows)
            before = states
            states, saved = cell.forward(ax, tuple(ah), states, Given(self.per_unit, tuple(sums), self.noise))
            states = whole(states, before[0])
            self.tape.append((before, states, saved, inner, tuple(sums), h))
            h = states[0] if self.W_hr is None else states[0] @ self.W_hr.T
            outputs.append(h)
        return np.stack(outputs), (h, *states[1:])

    def backward(self, dy, d_states):
        """dx, the initial states' gradients and those of the parameters by name."""
        cell, dx = self.cell, np.empty_like(self.x)
        dW, dR = [np.zeros_like(W) for W in self.W], [np.zeros_like(R) for R in self.R]
        db_w, db_r = [0.0] * len(self.W), [0.0] * len(self.R)
        d_per_unit, dW_hr = [0.0] * len(self.per_unit), 0.0
        for t in reversed(range(len(dy))):
            before, after, saved, inner, sums, h_before = self.tape[t]
            d_states = (d_states[0] + dy[t], *d_states[1:])
            if self.W_hr is not None:
                dW_hr = dW_hr + d_states[0].T @ after[0]
                d_states = (d_states[0] @ self.W_hr, *d_states[1:])
            d_v, d_ah, d_sums = [None] * cell.num_products, [None] * len(self.R), [None] * cell.num_sums

            def gradients_of(backward, given=(saved, before, after, d_states), d_v=d_v, d_sums=d_sums, sums=sums):
                return backward(*given, tuple(d_v), tuple(d_sums), Given(self.per_unit, sums, self.noise))

            for s, stage in reversed(list(enumerate(cell.stages))):
                found = whole(gradients_of(stage.backward), before[0])
                if stage.sums:
                    first = cell.first_sum(s)
                    d_sums[first : first + len(found)] = self.totals(found, before[0])
                    continue
                d_ah[self.products[s]] = found
                from_products = (d_ah[gate] @ self.R[gate] for gate in range(len(self.R))[self.products[s]])
                d_v[cell.product_number(s)] = sum(from_products)
            found = gradients_of(cell.backward)
            d_ax, d_ah[self.recurrent], d_before, d_own = (whole(part, before[0]) for part in found)
            from_h = sum(d_ah[gate] @ self.R[gate] for gate in range(len(self.R))[self.recurrent])
            d_states = (d_before[0] + from_h, *d_before[1:])
            dx[t] = sum(d @ W for d, W in zip(d_ax, self.W, strict=True))
            for gate, d in enumerate(d_ax):
                dW[gate] += d.T @ self.x[t]
                db_w[gate] += d.sum(axis=0)
            further = [rows for rows in self.products if rows.start < rows.stop]
            for rows, vector in zip([self.recurrent, *further], [h_before, *inner], strict=True):
                for gate in range(len(self.R))[rows]:
                    dR[gate] += d_ah[gate].T @ vector
                    db_r[gate] += d_ah[gate].sum(axis=0)
            d_per_unit = [total + d.sum(axis=0) for total, d in zip(d_per_unit, d_own, strict=True)]
        found = {"weight_ih": dW, "weight_hh": dR, "bias_ih": db_w, "bias_hh": db_r}
        gradients = {name: np.concatenate(d) for name, d in found.items() if name in self.parameters}
        gradients |= {} if self.W_hr is None else {"weight_hr": dW_hr}
        return dx, d_states, self.pulled_back(gradients | dict(zip(cell.per_unit, d_per_unit, strict=True)))
