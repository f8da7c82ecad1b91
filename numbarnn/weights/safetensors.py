"""safetensors files: a state dict by PyTorch's names, with a layer's options, as JSON, in the metadata.

Any program that reads safetensors finds PyTorch's state dict in them; files by other programs have no options.
"""

import json

from numbarnn.common import files
from numbarnn.weights import described as described_layers
from numbarnn.weights.network import agreed, package
from numbarnn.weights.torch import read as read_state_dict

KEY = "numbarnn"  # in the metadata
# The options it may hold.
OPTIONS = ("cell", "digest", "input_size", "hidden_size", *described_layers.OPTIONS)


def write(path, parameters, options):
    """Write name -> array, and options that JSON can express; OSError if the file cannot be written."""
    numpy = package("safetensors.numpy", "writing safetensors files")
    data = numpy.save(dict(parameters), metadata={"format": "pt", KEY: json.dumps(options)})
    with files.replacing(path) as part:
        part.write_bytes(data)


def described(path):
    """Return (the description, name -> array) of a file of a layer of any cell; None of any other."""
    arrays, metadata = _load(path)
    options = _options(metadata, path)
    return (options, arrays) if "digest" in options else None


def read(path, cell=None, prefix=""):
    """Return the `NetworkData` of a file, and the layer's options in it ({} if another program wrote it).
    See `numbarnn.convert.load_safetensors`."""
    arrays, metadata = _load(path)
    options = _options(metadata, path)
    file_cell = options.pop("cell", None)
    network, _ = read_state_dict(arrays, agreed(cell, file_cell, path) if file_cell else cell, prefix)
    return network, options


def _load(path):
    """Return name -> array, and the metadata."""
    safetensors = package("safetensors", "reading safetensors files")
    numpy = package("safetensors.numpy", "reading safetensors files")
    with open(path, "rb"):  # an OSError with the file's name, which safetensors' own lack
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
    except (json.JSONDecodeError, RecursionError) as error:  # the second: lists nested too deeply
        raise ValueError(f"the metadata {KEY!r} of {path} are not valid JSON: {error}") from error
    if not isinstance(options, dict):
        raise ValueError(f"the metadata {KEY!r} of {path} must be a JSON object, not {options!r}")
    if unknown := [name for name in options if name not in OPTIONS]:
        raise ValueError(
            f"the metadata {KEY!r} of {path} has unknown options {unknown}; allowed are {', '.join(OPTIONS)}"
        )
    return options
