"""The reference against what PyTorch, onnxruntime and cuDNN once computed (tests/data).

Layers on every engine: tests/test_every_engine.py.
"""

import re

import numpy as np
import pytest

import fake_cudnn
import record_vectors
import vectors
from numbarnn.bench import accuracy
from numbarnn.common.precision import numpy_dtype

RECORDINGS = vectors.read_all()
WITH_DTYPES = [(recording, dtype) for recording in RECORDINGS for dtype in recording.results]
SOURCE = r"(PyTorch|onnxruntime) \d+\.\d+\.\d+ CPU, 20\d\d-\d\d-\d\d|cuDNN 9\.\d+\.\d+ on .+, CUDA driver .+, 20\d\d-.+"
MOST_BYTES = 1_000_000

by_recording = pytest.mark.parametrize("recording", RECORDINGS, ids=[recording.name for recording in RECORDINGS])
by_recording_and_dtype = pytest.mark.parametrize(
    ("recording", "dtype"), WITH_DTYPES, ids=[f"{recording.name}-{dtype}" for recording, dtype in WITH_DTYPES]
)


# ----------------------------------------------------------------------------------------------------------- the files
def test_files_are_small():
    assert sum(file.stat().st_size for file in vectors.FOLDER.iterdir()) < MOST_BYTES


@by_recording
def test_a_file_says_what_it_is(recording):
    assert re.fullmatch(SOURCE, recording.source)
    for array in (*recording.inputs.values(), *recording.parameters.values()):
        assert np.array_equal(array, np.round(array * 64) / 64) and np.max(np.abs(array)) < 2
    outputs = {"y", "hy"} | ({"cy"} if recording.cell == "lstm" else set())
    gradients = {*recording.parameters, "dx"} | ({"dhx", "dcx"} & {f"d{name}" for name in recording.inputs})
    for dtype, results in recording.results.items():
        if "cudnn" in recording.name:
            gradients |= {"dhx"} | ({"dcx"} if recording.cell == "lstm" else set())
        assert set(results) == outputs | (set() if "onnxruntime" in recording.name else gradients), dtype


@pytest.mark.parametrize("dtype", ("float64", "float32", "float16", "bfloat16"))
def test_what_is_written_is_read(tmp_path, dtype):
    recording = vectors.draw("one", "lstm", cell_clip=(-0.25, 0.5), lengths=(2, 0, 4), padding_value=0.5, bias="input")
    recording.source = "nowhere"
    recording.results[dtype] = {
        name: value.astype(numpy_dtype(dtype)) for name, value in vectors.expected(recording).items()
    }
    for folder in ("first", "second"):
        vectors.write(recording, tmp_path / folder)
    [again] = vectors.read_all(tmp_path / "first")
    assert (again.name, again.source, again.cell) == ("one", "nowhere", "lstm")
    assert (again.options, again.lengths) == (recording.options, recording.lengths)
    for ours, theirs in (
        (recording.inputs, again.inputs),
        (recording.parameters, again.parameters),
        (recording.results[dtype], again.results[dtype]),
    ):
        assert list(ours) == list(theirs)
        for name, array in ours.items():
            np.testing.assert_array_equal(array, theirs[name], strict=True)
    assert (tmp_path / "first" / "one.npz").read_bytes() == (tmp_path / "second" / "one.npz").read_bytes()


def test_the_recorder_runs_cudnn(tmp_path):
    """On a device made of NumPy, whose results are the reference's."""
    files, recordings = record_vectors.record(tmp_path, fake_cudnn.session()), vectors.read_all(tmp_path)
    assert len(files) == len(recordings) == 30
    assert {one.name for one in recordings} == {one.name for one in RECORDINGS if one.name.startswith("cudnn-")}
    for recording in recordings:
        assert recording.source.startswith("cuDNN 9.28.0 on emulated GPU, CUDA driver 13.0, 20")
        assert len(recording.results) == (2 if recording.cell == "rnn_relu" or "clip" in recording.name else 4)
        for dtype in recording.results:
            assert_agrees_with_reference(recording, dtype)


# ------------------------------------------------------------------------------------------------------------- results
def assert_agrees_with_reference(recording, dtype):
    """What was recorded is only rounded otherwise than the reference's."""
    case, expected, problems = recording.case(dtype), vectors.expected(recording), []
    for name, recorded in recording.results[dtype].items():
        found = accuracy.error(recorded, expected[name])
        if accuracy.trusted(case, found) is None:
            problems.append(f"{name} {found:.1e}")
    assert not problems, f"{recording.name} {dtype}: {', '.join(problems)}, floor {accuracy.floor(case):.1e}"


@by_recording_and_dtype
def test_the_reference_agrees(recording, dtype):
    assert_agrees_with_reference(recording, dtype)
