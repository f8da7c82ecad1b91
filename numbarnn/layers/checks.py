"""Check options that users pass in. Errors say what came, what was expected, and the cure. See `array_checks` for
arrays."""

from collections.abc import Mapping
from numbers import Integral

import numpy as np

from numbarnn.common.precision import DTYPES, is_number, numpy_dtype
from numbarnn.weights import BIAS_MODES, INPUT_MODES

CUPY_WITH_BFLOAT16 = 14  # major version


def _is_int(value):
    return isinstance(value, Integral) and not isinstance(value, bool)


def positive_int(value, name):
    """Return `value` as an int of at least 1."""
    if not _is_int(value):
        raise TypeError(f"{name} must be a positive int, not {value!r}")
    if value < 1:
        raise ValueError(f"{name} must be at least 1, not {value}")
    return int(value)


def natural(value, name):
    """Return `value` as an int of at least 0."""
    if not _is_int(value) or value < 0:
        raise ValueError(f"{name} must be an int of at least 0, not {value!r}")
    return int(value)


def checkpoint_every(value):
    """Return k, an int of at least 1, or None."""
    if value is None or (_is_int(value) and value >= 1):
        return value if value is None else int(value)
    raise (ValueError if _is_int(value) else TypeError)(
        f"checkpoint_every must be an int of at least 1 (steps between kept states), or None to keep all, got {value!r}"
    )


def flag(value, name):
    """Return `value` as a bool."""
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be True or False, not {value!r}")
    return value


def allow_tf32(value):
    """Return True, False or "3x"."""
    if isinstance(value, bool) or (isinstance(value, str) and value == "3x"):
        return value
    raise TypeError(
        f"allow_tf32 must be True, False, or '3x' (three TF32 products for each float32 product), got {value!r}"
    )


def hidden_sizes(hidden_size, num_layers):
    """Return H of each layer, from PyTorch's hidden_size and num_layers or from one int per layer."""
    if _is_int(hidden_size):
        layers = 1 if num_layers is None else positive_int(num_layers, "num_layers")
        return (positive_int(hidden_size, "hidden_size"),) * layers
    if not isinstance(hidden_size, list | tuple):
        raise TypeError(f"hidden_size must be an int or a list of one int per layer, not {hidden_size!r}")
    if not hidden_size:
        raise ValueError("hidden_size must have at least one layer, but is empty")
    sizes = tuple(positive_int(size, f"hidden_size[{layer}]") for layer, size in enumerate(hidden_size))
    if num_layers is not None and positive_int(num_layers, "num_layers") != len(sizes):
        raise ValueError(f"num_layers is {num_layers}, but hidden_size has {len(sizes)} layers; leave num_layers out")
    return sizes


def bias_mode(value, cell):
    """Return the name of a bias mode, one of `BIAS_MODES`, for a bool or a name; the cell's own if its equations
    decide."""
    if cell.bias is not None:
        if value is not True:
            raise ValueError(f"bias must be left out: the equations of {cell.name} say which biases there are")
        return cell.bias
    if isinstance(value, bool):
        return "double" if value else "none"
    if not isinstance(value, str) or value not in BIAS_MODES:
        names = ", ".join(repr(name) for name in BIAS_MODES)
        error = ValueError if isinstance(value, str) else TypeError
        raise error(f"bias must be True, False or one of {names}, not {value!r}")
    return value


def proj_size(value, cell, sizes):
    """Return P, or 0 without projection."""
    width = natural(value, "proj_size")
    if cell.projected:
        if not width and len(set(sizes)) > 1:
            raise ValueError(
                f"proj_size must be given: {cell.name} projects its output, and the layers' hidden sizes {sizes} differ"
            )
        width = width or sizes[0]
        if cell.num_products:
            raise ValueError(
                f"cell {cell.name} multiplies a vector computed within the step by a matrix, and projects its output: "
                "write it without one of the two, as both would need rows of other lengths in the matrix R"
            )
        return width
    if width and cell.general:
        raise ValueError(
            f"proj_size must be left out: the equations of {cell.name} have no projection; to have one, write "
            "`return p.P.h @ ..., ...`"
        )
    if width and "c" not in cell.states:
        raise ValueError(f"proj_size is for the LSTM, a {cell.name} has no projection: leave it out")
    if width >= min(sizes):
        raise ValueError(
            f"proj_size must be smaller than every hidden size, but is {width}; the least hidden_size is {min(sizes)}"
        )
    return width


def recurrent_matrix(cell, sizes, width):
    """Raise ValueError unless R can have the cell's heads and dropped weights; width: P, or 0 without projection."""
    positive_int(cell.heads, f"heads of cell {cell.name}")
    for name, size in [("hidden_size", hidden) for hidden in sizes] + [("proj_size", width)]:
        if size % cell.heads:
            raise ValueError(f"{name} must be a multiple of the {cell.heads} heads of cell {cell.name}, but is {size}")
    if cell.drop_connect and len(cell.drop_connect) != cell.num_ah:
        raise ValueError(
            f"drop_connect of cell {cell.name} must have one probability for each of the {cell.num_ah} gates of "
            f"R, but has {len(cell.drop_connect)}"
        )
    for rate in cell.drop_connect:
        probability(rate, f"drop_connect of cell {cell.name}")


def larger_states(cell, sizes, widths, mode):
    """Raise ValueError if a layer has a state of more units than h and an option that excludes this.
    sizes: H of each layer. widths: units of each layer's largest state. mode: the input mode."""
    for layer, (hidden, width) in enumerate(zip(sizes, widths, strict=True)):
        problem = f"layer {layer}: a state of {width} units, more than the hidden size {hidden}, cannot go with"
        cure = f"take a hidden size of {width} or more"
        if width > hidden and cell.num_sums:
            raise ValueError(f"{problem} sums over units; {cure}")
        if width > hidden and cell.heads > 1:
            raise ValueError(f"{problem} matrices of {cell.heads} heads; {cure}")
        if width > hidden and layer == 0 and mode != "linear":
            raise ValueError(f"{problem} input_mode {mode!r}; {cure}, or input_mode 'linear'")


def side_inputs(cell, input_size, sizes, mode):
    """Raise ValueError unless x has columns for the cell's side inputs, and the layer is a single one with a W."""
    side = cell.parameters.side
    if side and input_size <= (width := cell.parameters.side_width):
        listed = ", ".join(f"{name} ({columns})" for name, columns in side.items())
        raise ValueError(
            f"input_size counts side inputs, the last columns of x: it must be above {width} for cell {cell.name}, "
            f"which has {listed}; got {input_size}"
        )
    if side and (len(sizes) > 1 or mode != "linear"):
        wanted = f"num_layers=1, got {len(sizes)}: make one layer object per layer, and pass each its side inputs"
        wanted = wanted if len(sizes) > 1 else f"input_mode='linear', got {mode!r}"
        raise ValueError(f"cell {cell.name} has side inputs ({', '.join(side)}), which need {wanted}")


def side_by_name(cell, value):
    """Return name -> side input in the cell's order; raise unless exactly the cell's side inputs are there."""
    known = cell.parameters.side
    if not isinstance(value, Mapping):
        raise TypeError(f"side must map names to arrays, but is a {type(value).__qualname__}")
    if value.keys() != known.keys():
        wanted = ", ".join(f"{name} ({width} columns)" for name, width in known.items()) or "none"
        raise ValueError(
            f"side must have the side inputs of cell {cell.name}: {wanted}; got {', '.join(value) or 'none'}"
        )
    return {name: value[name] for name in known}


def input_mode(value, input_size, sizes, width):
    """Return the input mode, one of `INPUT_MODES`; given: D*G*H of layer 0, the width of W x."""
    if value not in INPUT_MODES:
        raise ValueError(f"input_mode must be one of {', '.join(map(repr, INPUT_MODES))}, not {value!r}")
    if value == "skip" and input_size != sizes[0]:
        raise ValueError(
            f"input_mode 'skip' adds x to each gate of layer 0: input_size must be its hidden size {sizes[0]}, not "
            f"{input_size}"
        )
    if value == "given" and input_size != width:
        raise ValueError(
            f"input_mode 'given' takes W x of layer 0 as x: input_size must be directions * gates * units = {width}, "
            f"not {input_size}"
        )
    return value


def keeps_states(stack, requested):
    """Raise ValueError if the cell states of every step are requested and the cell has none."""
    if requested and not stack.cell.num_private:
        raise ValueError(f"output_states must be False: a {stack.cell.name} has no state besides h, and y is h")


def needed(need, names):
    """Return `need` as a tuple of allowed names."""
    wanted = f"need must be a tuple of some of {', '.join(map(repr, names))}"
    if not isinstance(need, tuple | list | set | frozenset):
        raise TypeError(f"{wanted}, not {need!r}")
    if unknown := [name for name in need if name not in names]:
        raise ValueError(f"{wanted}, but has {unknown[0]!r}")
    return tuple(need)


def probability(value, name):
    """Return `value` as a float in [0, 1]."""
    if not is_number(value):
        raise TypeError(f"{name} must be a number in [0, 1], not {value!r}")
    if not 0.0 <= value <= 1.0:  # NaN is not
        raise ValueError(f"{name} must be in [0, 1], not {value}")
    return float(value)


def seed(value):
    """Return `value` as an int in [0, 2^64), or a random one for None."""
    if value is None:
        return int(np.random.default_rng().integers(2**63))
    if not _is_int(value):
        raise TypeError(f"seed must be a non-negative int or None, not {value!r}")
    if not 0 <= value < 2**64:
        raise ValueError(f"seed must be in [0, 2^64), not {value}")
    return int(value)


def dtype_name(dtype):
    """Return the name of a dtype that layers can have, one of `DTYPES`."""
    if dtype == "bfloat16":  # NumPy does not know it before ml_dtypes is imported
        return numpy_dtype(dtype).name
    try:
        name = np.dtype(dtype).name if dtype is not None else None  # NumPy takes None for float64
    except TypeError as error:
        raise TypeError(f"dtype must be one of {', '.join(DTYPES)}, not {dtype!r}") from error
    if name not in DTYPES:
        raise ValueError(f"dtype must be one of {', '.join(DTYPES)}, not {name!r}")
    return name


def dtype_on(engine, dtype):
    """Raise RuntimeError if the engine has no arrays of this dtype, with the upgrade that adds them."""
    if dtype == "bfloat16" and engine.name == "cuda":
        version = engine.array_module.__version__
        if int(version.split(".")[0]) < CUPY_WITH_BFLOAT16:
            raise RuntimeError(
                f"dtype 'bfloat16' needs CuPy {CUPY_WITH_BFLOAT16} or newer, but this is CuPy {version}: "
                'pip install "cupy-cuda12x>=14" (or cupy-cuda13x), or use dtype="float16"'
            )
