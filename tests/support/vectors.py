"""Recorded vectors: what PyTorch, onnxruntime and cuDNN computed once of small problems, tests/data/*.npz.

One file is one problem, readable with `numpy.load` alone:

    about               JSON text: source (what computed it, where, when), cell, options (by the names of the layers'
                        arguments), lengths, dtypes
    input/x             (T, B, I); hx, cx (L*D, B, ...); dy, dhy, dcy: gradients of y, hy and cy
    parameter/<name>    by PyTorch's names
    <dtype>/<quantity>  results in that dtype: y, hy, cy; where the source has gradients also dx, dhx, dcx, and that of
                        each parameter by its name. bfloat16 as its bits, in uint16

Inputs and parameters are multiples of 1/64 below 2, which every dtype holds exactly, and are stored in float16: all
dtypes have the same problem. In padding x and dy hold numbers too, to be ignored; dx there is 0. Nothing here is ever
computed by numbarnn: record_vectors.py makes the files.
"""

import json
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

import kinks
import problems
from cudnn_problem import case_of, weight_space
from numbarnn.bench import accuracy, cases
from numbarnn.bench.peers.cudnn import Options
from numbarnn.common.precision import numpy_dtype
from running import train

FOLDER = Path(__file__).parents[1] / "data"
STEP, LARGEST = 1 / 64, 127 / 64
KINK = 1e-3  # how near a ReLU's argument may come to 0, or a cell state to a bound of the clip
OUTPUTS = ("y", "hy", "cy")
STATES = {"hy", "cy", "dhx", "dcx"}
INPUTS = ("x", "hx", "cx", "dy", "dhy", "dcy")
LAYER_OPTIONS = ("num_layers", "bidirectional", "bias", "input_mode", "proj_size", "cell_clip", "clip_propagate_nan")


@dataclass
class Recording:
    """One problem and its results.

    Attributes:
        name: of the file.
        cell: "lstm", "gru", "rnn_tanh" or "rnn_relu".
        options: those of LAYER_OPTIONS that are not the usual ones, and padding_value.
        inputs: name of INPUTS -> float64 array; those that are missing are None, zero.
        parameters: name -> float64 array.
        lengths: B ints, or None.
        source: what computed the results, where and when; "" before.
        results: dtype -> quantity -> array of that dtype.
    """

    name: str
    cell: str
    options: dict
    inputs: dict
    parameters: dict
    lengths: tuple | None = None
    source: str = ""
    results: dict = field(default_factory=dict)

    @property
    def layout(self):
        """The options with the sizes, as `cudnn.Options`."""
        sized_by = "weight_hr_l0" if self.options.get("proj_size") else "weight_hh_l0"
        hidden = self.parameters[sized_by].shape[1]
        chosen = {name: value for name, value in self.options.items() if name in LAYER_OPTIONS}
        return Options(self.cell, self.inputs["x"].shape[2], hidden, **chosen)

    @property
    def padding_value(self):
        """What is to stand in y's padding."""
        return self.options.get("padding_value", 0.0)

    @property
    def valid(self):
        """(T, B) of bool: what is no padding."""
        T, B = self.inputs["x"].shape[:2]
        return np.arange(T)[:, None] < np.array((T,) * B if self.lengths is None else self.lengths)

    def cast(self, dtype):
        """(inputs, parameters) in a dtype, which changes no value; an input that is missing is None."""
        dtype = numpy_dtype(dtype)
        inputs = {name: None if (a := self.inputs.get(name)) is None else a.astype(dtype) for name in INPUTS}
        return inputs, {name: array.astype(dtype) for name, array in self.parameters.items()}

    def case(self, dtype):
        """The problem's sizes as `bench.cases.Case`, for `bench.accuracy`."""
        o, (T, B, width) = self.layout, self.inputs["x"].shape
        hidden = (o.hidden_size,) * o.num_layers
        return cases.Case(
            self.cell, T, B, width, hidden, bidirectional=o.bidirectional, proj_size=o.proj_size, dtype=dtype
        )


# ------------------------------------------------------------------------------------------------------------ problems
def draw(name, cell, *, T=4, B=3, input_size=2, hidden_size=3, state=True, gradients=True, lengths=None, **options):
    """A Recording without results, of random numbers: the same for the same name, and away from every kink."""
    layer_options = {key: value for key, value in options.items() if key in LAYER_OPTIONS}
    o = Options(cell, input_size, hidden_size, **layer_options)
    parts = o.num_layers * o.directions
    h, c = (parts, B, o.state_size), (parts, B, hidden_size)
    shapes = {"x": (T, B, input_size), "dy": (T, B, o.output_size)}
    shapes |= ({"hx": h} | ({"cx": c} if o.has_c else {})) if state else {}
    shapes |= ({"dhy": h} | ({"dcy": c} if o.has_c else {})) if gradients else {}
    for seed in range(1000):
        random = np.random.default_rng([seed, *name.encode()])

        def steps(shape, scale, random=random):
            return np.clip(np.round(random.standard_normal(shape) * scale / STEP) * STEP, -LARGEST, LARGEST)

        inputs = {key: steps(shape, 0.7) for key, shape in shapes.items()}
        parameters = {key: steps(shape, 0.5) for key, shape in weight_space(o).shapes.items()}
        recording = Recording(name, cell, options, inputs, parameters, lengths)
        if kink_distance(recording) > KINK:
            return recording
    raise RuntimeError(f"{name}: no problem away from the kinks was found: draw a smaller one")


def kink_distance(recording):
    """How near a ReLU's argument comes to 0, and a cell state to a bound of the clip."""
    found = kinks.sides(recording.cell, recording.layout.clip_bounds, Problem(recording).reference())
    return np.inf if found is None else np.min(np.abs(found))


# ------------------------------------------------------------------------------------------------------- the reference
class Problem(problems.Problem):
    """The problem of a Recording in a dtype."""

    def __init__(self, recording, dtype="float64"):
        (inputs, parameters), L = recording.cast(dtype), recording.layout.num_layers
        given = tuple(name for name in ("dy", "dhy", "dcy") if inputs[name] is not None)
        options = dict(lengths=recording.lengths, padding_value=recording.padding_value, given=given, dtype=dtype)
        state = inputs["hx"] is not None
        super().__init__(case_of(recording.layout, *inputs["x"].shape[:2], state=state, **options))
        self.parameters, self.x, self.dy = parameters, inputs["x"], inputs["dy"]
        self.states, self.d_states = (
            [None if inputs[name] is None else np.split(inputs[name], L) for name in names[: len(self.case.states)]]
            for names in (("hx", "cx"), ("dhy", "dcy"))
        )

    def by_quantity(self, values):
        """What has the names of `expected`, by those of a recording."""
        return {name[1:] if name[1:] in self.parameters else name: value for name, value in values.items()}


def expected(recording, of_numbarnn=False):
    """Quantity -> what the float64 reference computes; of cuDNN zeros for the states of a sequence of length 0, and for
    their gradients, where numbarnn passes them on."""
    problem = Problem(recording)
    values = problem.by_quantity(problem.expected())
    if not of_numbarnn and recording.name.startswith("cudnn-") and recording.lengths and 0 in recording.lengths:
        for name in STATES & values.keys():
            values[name] = values[name] * (np.array(recording.lengths) > 0)[:, None]
    return values


# ----------------------------------------------------------------------------------------------------------- the files
def write(recording, folder=FOLDER):
    """Write a file; the same recording makes the same bytes."""
    about = {"source": recording.source, "cell": recording.cell, "options": recording.options}
    about |= {"lengths": recording.lengths, "dtypes": list(recording.results)}
    arrays = {"about": np.array(json.dumps(about))}
    for kind, group in (("input", recording.inputs), ("parameter", recording.parameters)):
        for name, array in group.items():
            stored = array.astype(np.float16)
            assert np.array_equal(stored, array), f"{kind} {name} is not exact in float16"
            arrays[f"{kind}/{name}"] = stored
    for dtype, results in recording.results.items():
        for name, array in results.items():
            assert array.dtype == numpy_dtype(dtype), f"{dtype}/{name} is {array.dtype}"
            array = np.ascontiguousarray(array)
            arrays[f"{dtype}/{name}"] = array.view(np.uint16) if dtype == "bfloat16" else array
    Path(folder).mkdir(exist_ok=True)
    np.savez_compressed(Path(folder) / f"{recording.name}.npz", **arrays)


def read(file):
    """The Recording of a file."""
    with np.load(file) as stored:
        about = json.loads(str(stored["about"]))
        groups = {}
        for key in stored.files:
            kind, _, name = key.partition("/")
            groups.setdefault(kind, {})[name] = stored[key]
    lengths, clip = about["lengths"], about["options"].get("cell_clip")
    options = about["options"] | ({"cell_clip": tuple(clip)} if isinstance(clip, list) else {})
    results = {dtype: groups[dtype] for dtype in about["dtypes"]}
    if "bfloat16" in results:
        bfloat16 = numpy_dtype("bfloat16")
        results["bfloat16"] = {name: bits.view(bfloat16) for name, bits in results["bfloat16"].items()}
    wide = {kind: {name: a.astype(np.float64) for name, a in groups[kind].items()} for kind in ("input", "parameter")}
    return Recording(
        Path(file).stem, about["cell"], options, wide["input"], wide["parameter"],
        None if lengths is None else tuple(lengths), about["source"], results,
    )  # fmt: skip


def read_all(folder=FOLDER):
    """Every Recording of a folder, by name."""
    return [read(file) for file in sorted(Path(folder).glob("*.npz"))]


# ------------------------------------------------------------------------------------------------------------ numbarnn
def layer_values(recording, dtype, device, schedule="auto"):
    """Quantity -> what a layer of numbarnn computes, in the shapes of the recording."""
    problem = Problem(recording, dtype)
    return problem.by_quantity(train(problem.layer(device, schedule=schedule), problem)[0])


def assert_as_exact(recording, dtype, values, what):
    """Each quantity is at most twice as far from float64 as the recorded one, or within `accuracy.floor`. Results in
    float64 are compared with numbers that are rounded as much: of independent errors the squares add up."""
    own = 2**0.5 if dtype == "float64" else 1.0
    case, problems, wanted, theirs_wanted = recording.case(dtype), [], expected(recording, True), expected(recording)
    for name, recorded in recording.results[dtype].items():
        value = values[name]
        assert value.shape == recorded.shape and value.dtype == recorded.dtype, f"{what} {name}"
        found, theirs = accuracy.error(value, wanted[name]), accuracy.error(recorded, theirs_wanted[name])
        if not found <= own * accuracy.limit(case, theirs):
            problems.append(f"{name} {found:.1e}, recorded {theirs:.1e}, floor {accuracy.floor(case):.1e}")
    assert not problems, f"{what} against {recording.source}: {'; '.join(problems)}"
