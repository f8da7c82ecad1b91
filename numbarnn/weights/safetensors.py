"""Read and write safetensors files: a state dict by PyTorch's names, with the layer's options as JSON in the metadata.

Files of other programs have no options.
"""

import json

from numbarnn.common import files
from numbarnn.weights import network
from numbarnn.weights.network import agreed, package
from numbarnn.weights.torch import read as read_state_dict

KEY = "numbarnn"  # in the metadata: the options
OPTIONS = ("cell", "digest", "input_size", "hidden_size", *network.OPTIONS)


def write(path, parameters, options):
    """Write parameters, name -> array, and options; OSError if the file cannot be written."""
    numpy = package("safetensors.numpy", "writing safetensors files")
    data = numpy.save(dict(parameters), metadata={"format": "pt", KEY: json.dumps(options)})
    with files.replacing(path) as part:
        part.write_bytes(data)


def described(path):
    """Return (description, name -> array) of a file with a description of a layer, None for other files."""
    arrays, metadata = _load(path)
    options = _options(metadata, path)
    return (options, arrays) if "digest" in options else None


def read(path, cell=None, prefix=""):
    """Return a file's `NetworkData` and the layer's options, {} if another program wrote the file."""
    arrays, metadata = _load(path)
    options = _options(metadata, path)
    file_cell = options.pop("cell", None)
    data, _ = read_state_dict(arrays, agreed(cell, file_cell, path) if file_cell else cell, prefix)
    return data, options


def _load(path):
    """Return (name -> array, metadata) of a file."""
    safetensors = package("safetensors", "reading safetensors files")
    numpy = package("safetensors.numpy", "reading safetensors files")
    with open(path, "rb"):  # raises OSError with the file's name, which safetensors' errors lack
        pass
    try:
        with safetensors.safe_open(path, "numpy") as file:
            metadata = file.metadata() or {}
        return numpy.load_file(path), metadata
    except safetensors.SafetensorError as error:
        raise ValueError(f"{path} cannot be read as a safetensors file: {error}") from error


def _options(metadata, path):
    try:
        options = json.loads(metadata.get(KEY, "{}"))
    except (json.JSONDecodeError, RecursionError) as error:  # RecursionError: lists nested too deeply
        raise ValueError(f"the metadata {KEY!r} of {path} are not valid JSON: {error}") from error
    if not isinstance(options, dict):
        raise ValueError(f"the metadata {KEY!r} of {path} must be a JSON object, not {options!r}")
    if unknown := [name for name in options if name not in OPTIONS]:
        raise ValueError(
            f"the metadata {KEY!r} of {path} has unknown options {unknown}; allowed are {', '.join(OPTIONS)}"
        )
    return options
