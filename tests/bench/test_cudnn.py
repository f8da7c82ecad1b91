"""The binding to cuDNN without a GPU: search and messages; where cuDNN is installed, its prototypes, numbers,
descriptors and weight layout. Calls that compute: test_cudnn_calls.py.

Where cuDNN is looked for: the wheels nvidia-cudnn-cu12 and -cu13, the system, or the folder in NUMBARNN_CUDNN.
"""

import ctypes
import re
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest

import numbarnn
from cudnn_problem import LAYOUTS_OF_WEIGHTS, OPTIONS, as_weight_space
from numbarnn.bench.peers import cudnn
from numbarnn.bench.peers.cudnn import descriptors, library, options, weights
from numbarnn.common.precision import numpy_dtype


@pytest.fixture(scope="module")
def cudnn_library():
    """The real cuDNN, which does all but running without a GPU."""
    try:
        return library.library()
    except RuntimeError as error:
        pytest.skip(str(error))


# ------------------------------------------------------------------------------------------------------------ searching
def site_with_cudnn(folder):
    """A folder like site-packages, with a file that is named like cuDNN."""
    file = folder / "nvidia" / "cudnn" / "lib" / "libcudnn.so.9"
    file.parent.mkdir(parents=True)
    file.write_bytes(b"no library")
    return file


@pytest.fixture
def on_linux(monkeypatch):
    monkeypatch.setattr(library.sys, "platform", "linux")
    monkeypatch.delenv(library.PATH_VARIABLE, raising=False)


def test_the_wheel_comes_before_the_system(tmp_path, on_linux):
    file = site_with_cudnn(tmp_path / "second")
    found = library.candidates([str(tmp_path / "first"), str(tmp_path / "second")])
    assert found == [file, "libcudnn.so.9", "libcudnn.so"]


def test_the_environment_variable_is_taken_alone(tmp_path, on_linux, monkeypatch):
    file = site_with_cudnn(tmp_path)
    monkeypatch.setenv(library.PATH_VARIABLE, str(file.parent))
    assert library.candidates() == [file, file.parent / "libcudnn.so"]
    monkeypatch.setenv(library.PATH_VARIABLE, str(file))
    assert library.candidates() == [file]


def test_on_windows_it_has_another_name(tmp_path, monkeypatch):
    monkeypatch.delenv(library.PATH_VARIABLE, raising=False)
    monkeypatch.setattr(library.sys, "platform", "win32")
    file = tmp_path / "nvidia" / "cudnn" / "bin" / "cudnn64_9.dll"
    file.parent.mkdir(parents=True)
    file.touch()
    assert library.candidates([str(tmp_path)]) == [file, "cudnn64_9.dll"]


def test_what_is_not_found_is_named_with_the_cure(tmp_path, on_linux, monkeypatch):
    file = site_with_cudnn(tmp_path)
    monkeypatch.setenv(library.PATH_VARIABLE, str(file))
    with pytest.raises(RuntimeError, match=rf"{re.escape(str(file))}.*pip install nvidia-cudnn-cu12"):
        library.load()


def old_library(number):
    """What ctypes.CDLL returns, of an old cuDNN that lacks everything else."""
    return SimpleNamespace(cudnnGetVersion=Mock(return_value=number), cudnnGetErrorString=Mock())


def test_too_old_a_cudnn_is_refused(monkeypatch, on_linux):
    monkeypatch.setattr(library.ctypes, "CDLL", lambda name: old_library(8907))
    with pytest.raises(RuntimeError, match=r"libcudnn.so.9 is cuDNN 8\.9\.7; cuDNN 9 is needed.*pip install"):
        library.load([])


def test_a_function_that_is_missing_is_named(monkeypatch):
    monkeypatch.setattr(library.ctypes, "CDLL", lambda name: old_library(90100))
    with pytest.raises(RuntimeError, match=r"cuDNN 9\.1\.0 has no cudnnDestroy: pip install"):
        library.Library("somewhere").call("cudnnDestroy", handle=None)


def test_companions_that_cannot_be_loaded_are_left_to_cudnn(tmp_path, on_linux):
    """cuBLAS and NVRTC of wheels: what is no library here is no reason to give up."""
    folder = tmp_path / "nvidia" / "cublas" / "lib"
    folder.mkdir(parents=True)
    (folder / "libcublas.so.12").write_bytes(b"no library")
    library.preload_companions([str(tmp_path), str(tmp_path / "nowhere")])


def test_companions_are_loaded_before_cudnn_looks_for_them(tmp_path, on_linux, monkeypatch):
    loaded = []
    for name in ("cublas/lib/libcublas.so.12", "cublas/lib/libcublasLt.so.12", "cuda_nvrtc/lib/libnvrtc.so.12"):
        file = tmp_path / "nvidia" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    monkeypatch.setattr(library.ctypes, "CDLL", lambda name, mode: loaded.append((name.rpartition("/")[2], mode)))
    library.preload_companions([str(tmp_path)])
    everywhere = ctypes.RTLD_GLOBAL
    assert loaded == [(f"lib{name}.so.12", everywhere) for name in ("cublasLt", "cublas", "nvrtc")]


def test_why_not_says_what_helps():
    problem = cudnn.why_not()
    assert problem is None or re.search(r"pip install|NVIDIA GPU", problem)


def test_wrong_arguments_of_a_call_are_named():
    with pytest.raises(TypeError, match=r"cudnnDestroy: missing \['handle'\], unknown \['handel'\]"):
        library.in_order("cudnnDestroy", {"handel": None})


def test_an_error_has_cudnns_words_and_a_cure():
    error = cudnn.CudnnError("cudnnRNNForward", 3002, "CUDNN_STATUS_NOT_SUPPORTED_SHAPE", "h > limit\n at: here\n")
    assert str(error).startswith("cudnnRNNForward: CUDNN_STATUS_NOT_SUPPORTED_SHAPE (3002): h > limit; at: here. CuDNN")
    assert error.refused
    assert not cudnn.CudnnError("cudnnCreate", 2000, "CUDNN_STATUS_BAD_PARAM").refused


# ------------------------------------------------------------------------------- against cuDNN itself, without a GPU
C_TYPES = {"int": "i", "int32_t": "i", "uint32_t": "u", "size_t": "z", "unsigned long long": "Q", "float": "f"}
C_TYPES |= {"double": "d"}


def letter_of(declaration):
    """(name, letter of PROTOTYPES) of one argument in C."""
    words = declaration.replace("*", " * ").replace("[]", " [] ").replace("const ", "").split()
    name = next(word for word in reversed(words) if word != "[]")
    kind = " ".join(words[: words.index(name)])
    if "*" in kind or "[]" in words or re.fullmatch(r"(cudnn(\w+Descriptor|Handle)|cudaStream)_t", kind):
        return name, "p"
    return name, C_TYPES.get(kind, "i")  # what is left are enums


def test_prototypes_are_those_of_the_headers(cudnn_library):
    folder = Path(cudnn_library.file).parent.parent / "include"
    headers = [folder / f"cudnn_{part}.h" for part in ("adv", "ops", "graph")]
    if not all(header.is_file() for header in headers):
        pytest.skip(f"no headers of cuDNN in {folder}")
    text = re.sub(r"/\*.*?\*/|//[^\n]*", "", "\n".join(header.read_text() for header in headers), flags=re.DOTALL)
    for function, arguments in library.PROTOTYPES.items():
        found = re.search(rf"cudnnStatus_t\s+CUDNNWINAPI\s+{function}\s*\(([^)]*)\)", text)
        assert found, f"{function} is not in the headers"
        assert tuple(letter_of(part) for part in found[1].split(",")) == arguments, function


def enum_values(text):
    """Name -> number of every constant of C enums."""
    return {name: int(number) for name, number in re.findall(r"\b(CUDNN_\w+)(?:\s+\w+)?\s*=\s*(\d+)", text)}


def test_numbers_are_those_of_the_headers(cudnn_library):
    folder = Path(cudnn_library.file).parent.parent / "include"
    if not (folder / "cudnn_adv.h").is_file():
        pytest.skip(f"no headers of cuDNN in {folder}")
    numbers = enum_values("".join((folder / f"cudnn_{part}.h").read_text() for part in ("adv", "graph")))
    spelled = {
        "CUDNN_RNN_{}": {"relu": options.CELLS["rnn_relu"], "tanh": options.CELLS["rnn_tanh"]},
        "CUDNN_RNN_{}_BIAS": {
            {"none": "no", "input": "single_inp", "double": "double", "recurrent": "single_rec"}[name]: number
            for name, number in options.BIAS_MODES.items()
        },
        "CUDNN_{}_INPUT": options.INPUT_MODES,
        "CUDNN_RNN_ALGO_{}": options.ALGORITHMS,
        "CUDNN_DATA_{}": {
            {"float32": "float", "float64": "double", "float16": "half"}.get(name, name): number
            for name, number in options.DTYPES.items()
        },
        "CUDNN_{}_MATH": {name: n for name, n in options.MATH_TYPES.items() if name in ("default", "tensor_op", "fma")},
        "CUDNN_TENSOR_OP_MATH_{}": {"allow_conversion": options.MATH_TYPES["tensor_op_allow_conversion"]},
        "CUDNN_RNN_DATA_LAYOUT_{}": options.LAYOUTS,
        "CUDNN_FWD_MODE_{}": {"inference": options.INFERENCE, "training": options.TRAINING},
        "CUDNN_WGRAD_MODE_{}": {"add": options.WGRAD_ADD},
        "CUDNN_RNN_CLIP_{}": {"none": options.CLIP_NONE, "minmax": options.CLIP_MINMAX},
        "CUDNN_{}_NAN": {"not_propagate": options.NOT_PROPAGATE_NAN, "propagate": options.PROPAGATE_NAN},
        "CUDNN_{}": {name: options.CELLS[name] for name in ("lstm", "gru")},
    }
    for pattern, ours in spelled.items():
        for name, number in ours.items():
            assert numbers[pattern.format(name.upper())] == number


def test_tensor_descriptors_read_back(cudnn_library):
    tensor = descriptors.TensorDescriptor(cudnn_library, (2, 3, 5), "float64")
    assert tensor.read() == (1, (2, 3, 5), (15, 5, 1))


def read_data(data, batch, dtype):
    """(dtype's number, layout's number, T, B, width, lengths, padding value) as cuDNN has them."""
    lengths, fill = (ctypes.c_int * batch)(), np.zeros(1, numpy_dtype(dtype))
    numbers = library.ask(
        data.library.call, "cudnnGetRNNDataDescriptor", "i:dataType i:layout i:maxSeqLength i:batchSize i:vectorSize",
        rnnDataDesc=data.pointer, arrayLengthRequested=batch, seqLengthArray=lengths, paddingFill=fill.ctypes.data,
    )  # fmt: skip
    return (*numbers.values(), tuple(lengths), float(fill[0]))


@pytest.mark.parametrize("dtype", options.DTYPES)
@pytest.mark.parametrize("layout", options.LAYOUTS)
def test_data_descriptors_read_back(cudnn_library, layout, dtype):
    data = descriptors.DataDescriptor(cudnn_library, dtype, layout, 5, 3, 7, (5, 3, 1), 0.5)
    assert read_data(data, 3, dtype) == (options.DTYPES[dtype], options.LAYOUTS[layout], 5, 3, 7, (5, 3, 1), 0.5)


def test_cudnn_takes_lengths_in_any_order_and_zero_where_not_packed(cudnn_library):
    for layout in ("seq_major_unpacked", "batch_major_unpacked"):
        data = descriptors.DataDescriptor(cudnn_library, "float32", layout, 5, 3, 7, (2, 0, 4), 0.0)
        assert read_data(data, 3, "float32")[5] == (2, 0, 4)
    for lengths in ((3, 5, 1), (5, 3, 0), (4, 3, 1)):
        with pytest.raises(cudnn.CudnnError, match=r"BAD_PARAM.*(isSorted|SeqLengthInArray)"):
            descriptors.DataDescriptor(cudnn_library, "float32", "seq_major_packed", 5, 3, 7, lengths, 0.0)


@pytest.mark.parametrize("chosen", OPTIONS.values(), ids=OPTIONS)
def test_rnn_descriptors_read_back(cudnn_library, chosen):
    chosen = cudnn.Options(**chosen)
    rnn = descriptors.RnnDescriptor(cudnn_library, chosen)
    about = {"call": cudnn_library.call, "rnnDesc": rnn.pointer}
    found = library.ask(function="cudnnGetRNNDescriptor_v8", outputs=library.RNN_OPTIONS, **about)
    del found["dropoutDesc"]
    assert found == {
        "algo": options.ALGORITHMS[chosen.algorithm],
        "cellMode": options.CELLS[chosen.cell],
        "biasMode": options.BIAS_MODES[chosen.bias_mode],
        "dirMode": int(chosen.bidirectional),
        "inputMode": options.INPUT_MODES[chosen.input_mode],
        "dataType": options.DTYPES[chosen.dtype],
        "mathPrec": options.DTYPES[chosen.precision],
        "mathType": options.MATH_TYPES[chosen.math],
        "inputSize": chosen.input_size,
        "hiddenSize": chosen.hidden_size,
        "projSize": chosen.proj_size or chosen.hidden_size,
        "numLayers": chosen.num_layers,
        "auxFlags": int(chosen.layout != "seq_major_packed"),
    }
    bounds = chosen.clip_bounds
    expected = (0, 0, 0.0, 0.0) if bounds is None else (1, int(chosen.clip_propagate_nan), *bounds)
    outputs = "i:clipMode i:clipNanOpt d:lclip d:rclip"
    clip = tuple(library.ask(function="cudnnRNNGetClip_v8", outputs=outputs, **about).values())
    assert clip[0] == expected[0] and (bounds is None or clip == expected)


REFUSED = {
    "projection of a GRU": dict(cell="gru", proj_size=2),
    "projection above H": dict(proj_size=9),
    "projection, persistent": dict(proj_size=2, algorithm="persist_static"),
    "one bias, persistent": dict(bias="input", algorithm="persist_static_small_h"),
    "no bias, persistent": dict(bias=False, algorithm="persist_dynamic"),
    "float64, persistent": dict(dtype="float64", algorithm="persist_static"),
}


def test_cudnn_refuses_in_its_own_words(cudnn_library, session):
    """The real one and the fake one alike."""
    for chosen in REFUSED.values():
        chosen = cudnn.Options(**{"cell": "lstm", "input_size": 3, "hidden_size": 5} | chosen)
        for one in (cudnn_library, session.library):
            with pytest.raises(cudnn.CudnnError, match=r"NOT_SUPPORTED.*algorithm='standard' takes most") as caught:
                descriptors.RnnDescriptor(one, chosen)
            assert caught.value.refused


def test_crossed_bounds_are_refused(cudnn_library, session):
    for one in (cudnn_library, session.library):
        with pytest.raises(cudnn.CudnnError, match="BAD_PARAM"):
            descriptors.RnnDescriptor(one, cudnn.Options("lstm", 3, 5, cell_clip=(1.0, -1.0)))


# ------------------------------------------------------------------------------------------------------------- weights
def ask_without_gpu(file, everything):
    """`as_weight_space` by cuDNN. It does not look into its handle for this (9.28): a block of zeros will do.

    Runs in a process of its own, which another version of cuDNN may end.
    """
    one, zeros = library.Library(file), ctypes.create_string_buffer(1 << 20)
    handle, found = ctypes.c_void_p(ctypes.addressof(zeros)), []
    for chosen in everything:
        chosen = cudnn.Options(**chosen)
        rnn = descriptors.RnnDescriptor(one, chosen)
        places = weights.places(one, handle, rnn, chosen, base=1 << 30)
        size = weights.space_bytes(one, handle, rnn) // 4
        found.append(({name: (place.offset, place.shape) for name, place in places.items()}, size))
    return found


def test_cudnn_lays_out_weights_as_the_weight_space(cudnn_library):
    """Every cell, bias mode, direction, input mode and projection, asked of cuDNN itself."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        try:
            found = pool.submit(ask_without_gpu, cudnn_library.file, LAYOUTS_OF_WEIGHTS).result(timeout=120)
        except BrokenProcessPool:
            pytest.skip(f"cuDNN {cudnn_library.version_text} needs a real handle for this: see test_cudnn_calls.py")
    assert len(found) == len(LAYOUTS_OF_WEIGHTS) == 80
    for chosen, one in zip(LAYOUTS_OF_WEIGHTS, found, strict=True):
        assert one == as_weight_space(chosen), chosen
        assert list(one[0]) == list(as_weight_space(chosen)[0]), "not in the buffer's order"


def test_gates_apart_are_an_error():
    parts = [weights.Place(0, (5, 3)), weights.Place(16, (5, 3))]
    with pytest.raises(RuntimeError, match="weight_ih_l0: this cuDNN does not put its gates one after another"):
        weights._together("weight_ih_l0", parts)


# --------------------------------------------------------------------------------------------------------- assumptions
@pytest.mark.parametrize("token", ("CUDNN_RNN_SINGLE_REC_BIAS", "cudnnRNNSetClip", "CUDNN_NOT_PROPAGATE_NAN"))
def test_what_is_assumed_of_cudnn_is_said_wherever_it_is_described(token):
    """In cells, layers, the reference, and the documentation's table of options, whose note follows it."""
    package = Path(numbarnn.__file__).parent
    found = [
        path for part in ("cells", "layers", "reference") for path in (package / part).rglob("*.py")
        if path.parent.name != "cudnn" and token in path.read_text(encoding="utf-8")
    ]  # fmt: skip
    assert found
    for path in found:
        text = " ".join(path.read_text(encoding="utf-8").split())
        assert "is an assumption (`numbarnn.bench.peers.cudnn.assumptions`)" in text, path
    text = (package.parent / "notebooks" / "guides" / "options.md").read_text("utf-8")
    assert "is an assumption (all of them are in `numbarnn/bench/peers/cudnn/assumptions.py`)" in text
