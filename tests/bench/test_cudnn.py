"""The binding to cuDNN without a GPU: search and messages; where cuDNN is installed, its prototypes, numbers,
descriptors and weight layout. Calls that compute: test_cudnn_calls.py.

Where cuDNN is looked for: the wheels nvidia-cudnn-cu12 and -cu13, the system, or the folder in NUMBARNN_CUDNN.
"""

import re
from pathlib import Path

import pytest

from numbarnn.bench.peers import cudnn
from numbarnn.bench.peers.cudnn import descriptors, library


def network(one, chosen):
    """The descriptor of a network of some options."""
    made = descriptors.Descriptor(one, "RNN")
    descriptors.set_network(made, chosen)
    return made


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


def test_where_it_is_looked_for(tmp_path, on_linux, monkeypatch):
    """In wheels before the system; with the environment variable there alone."""
    tried, file = [], site_with_cudnn(tmp_path / "second")

    def missing(path):
        tried.append(path)
        raise OSError(f"no {path}")

    monkeypatch.setattr(library, "Library", missing)
    for variable in (None, file.parent, file):
        if variable:
            monkeypatch.setenv(library.PATH_VARIABLE, str(variable))
        with pytest.raises(RuntimeError, match="cuDNN 9 is not found"):
            library.load([str(tmp_path / "first"), str(tmp_path / "second")])
    assert tried == [file, "libcudnn.so.9", "libcudnn.so", file, file.parent / "libcudnn.so", file]


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
