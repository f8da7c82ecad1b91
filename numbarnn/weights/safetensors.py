"""Read and write safetensors files: a state dict by PyTorch's names, with the layer's options as JSON in the metadata.

Files of other programs have no options.
"""

import json

from numbarnn.cells.definition import CELL_OPTIONS
from numbarnn.common import files
from numbarnn.weights import network
from numbarnn.weights.network import package

KEY = "numbarnn"  # in the metadata: the options
OPTIONS = ("cell", "digest", "input_size", "hidden_size", *network.OPTIONS, *CELL_OPTIONS)


def write(path, parameters, options):
    """Write parameters, name -> array, and options; OSError if the file cannot be written."""
    numpy = package("safetensors.numpy", "writing safetensors files")
    data = numpy.save(dict(parameters), metadata={"format": "pt", KEY: json.dumps(options)})
    with files.replacing(path) as part:
        part.write_bytes(data)


def read(path):
    """Return a file's (name -> array, options of the layer); options are {} if another program wrote the file."""
    safetensors = package("safetensors", "reading safetensors files")
    numpy = package("safetensors.numpy", "reading safetensors files")
    with open(path, "rb"):  # raises OSError with the file's name, which safetensors' errors lack
        pass
    try:
        with safetensors.safe_open(path, "numpy") as file:
            metadata = file.metadata() or {}
        arrays = numpy.load_file(path)
    except safetensors.SafetensorError as error:
        raise ValueError(f"{path} cannot be read as a safetensors file: {error}") from error
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
    return arrays, options
