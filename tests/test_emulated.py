"""A sample of the tests that need a GPU, on the emulated one (tests/fakes/emulator): kernels as compiled, really
launched.

Compiling takes a second per kernel, or five, so each of the tests below is here for something that no other one has.
All of them: NUMBARNN_TEST_GPU=emulated python -m pytest -m gpu

Recorded benchmark sizes run on an emulated GPU with an H100's number of SMs with -m full.
"""

import os
import subprocess
import sys
from importlib.util import find_spec
from itertools import product
from pathlib import Path

import pytest

import matrix
import real_sizes

FOLDER = Path(__file__).parent


def of_matrix(*several):
    """For several words each the test of the matrix' first point for a GPU whose id has all of them."""
    points = list(map(str, matrix.points("cuda")))
    found = (next(name for name in points if all(word in name for word in words)) for words in several)
    return tuple(f"test_agrees_with_float64[cuda-{name}]" for name in found)


ALL = ("",)
SAMPLE = {  # module -> its tests
    "test_gemm.py": ("test_gpu_products_in_a_graph",),
    "test_conformance.py": of_matrix(
        ("GRU_RESET_BEFORE", "packed", "wavefront"),  # a stage's product
        # Cuts as the planner chooses them, three layers, with lengths; in inference too, recorded and replayed.
        ("RNN_RELU", "H5_3_4", "lengths", "float32-persistent"),
    ),
    "test_rows.py": (
        "test_fill_step_mask[cuda-2-300-130-False]",
        "test_select[cuda-2-5-9-float16-3-nan-False-('x',)]",
        "test_select[cuda-3-20-300-float64-2--0.5-False-('out',)]",
        "test_gather[cuda-700-300-nan-bfloat16]",
        "test_spread[cuda-50-300-bfloat16-4]",
        "test_sum_gates[cuda-50-300-bfloat16-4-set]",
    ),
    "test_gpu_self_check.py": ("test_a_right_kernel_is_proved_once",),  # of float16, by the tensor cores
}


MATRIX = "test_conformance.py"  # which takes as long as all others together
RUNS = {
    MATRIX: {MATRIX: SAMPLE[MATRIX]},
    "all others": {module: tests for module, tests in SAMPLE.items() if module != MATRIX},
}
MORE = {
    "test_gpu_self_check.py": ALL,
    # Two layers in one launch, each product in several groups of chunks, forward and backward, by mma.
    "test_persistent.py": (
        "test_several_groups_of_chunks_agree_with_reference[RNN_TANH-T2-B2-H72_72-bfloat16-mma-registers]",
    ),
    MATRIX: of_matrix(
        ("LSTM-", "proj", "-persistent"),  # what makes h within a step
        ("LSTM-", "proj", "clip", "float16-wavefront"),
        ("GRU_RESET_BEFORE", "H3_130", "packed", "persistent"),  # a stage's product within a step of one launch
        ("BLEND", "resets", "bfloat16"),  # a cell of one's own: a stage, per-unit parameters
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("sample", [*RUNS.values(), pytest.param(MORE, marks=pytest.mark.full)], ids=[*RUNS, "more"])
def test_on_the_emulated_gpu(toolchain_installed, sample):
    tests = []
    for module, names in sample.items():
        tests += [f"{path_of(module)}::{test}" if test else path_of(module) for test in names]
    run_on_the_emulated_gpu("gpu and not real_gpu", *tests)


@pytest.mark.full
@pytest.mark.parametrize("cell, dtype", [*product(real_sizes.CELLS, real_sizes.DTYPES)])
def test_all_real_sizes(toolchain_installed, cell, dtype):
    arguments = path_of("test_real_sizes.py"), "-k", f"{cell}-{dtype}"
    sms = real_sizes.MULTIPROCESSORS
    run_on_the_emulated_gpu("gpu and (full or not full)", *arguments, multiprocessors=sms, timeout=1200)


def path_of(module):
    (file,) = FOLDER.rglob(module)
    return str(file)


def run_on_the_emulated_gpu(marks, *arguments, multiprocessors=None, timeout=600):
    """Run pytest in a process with an emulated GPU, and assert that it found tests and that all of them passed."""
    environment = {**os.environ, "NUMBARNN_TEST_GPU": "emulated"}
    if multiprocessors:
        environment["NUMBARNN_TEST_GPU_SMS"] = str(multiprocessors)
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-m", marks, *arguments],
        env=environment,
        cwd=FOLDER.parent,
        capture_output=True,
        text=True,
        timeout=timeout,
    )
    assert ran.returncode == 0, f"{ran.stdout}\n{ran.stderr}"  # also where a test was not found
    assert " failed" not in ran.stdout and " passed" in ran.stdout, ran.stdout
    assert find_spec("torch") is None or " skipped" not in ran.stdout, ran.stdout
