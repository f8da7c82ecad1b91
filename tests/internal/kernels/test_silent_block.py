"""A call with a block that publishes nothing ends in an error, on a GPU within two seconds, and the next one works."""

import time

import numpy as np
import pytest
from numba import cuda

import emulator
from mutants import altered
from numbarnn import engines
from numbarnn.bench.cases import Case, make_instance, make_layer
from numbarnn.bench.check import check_case
from numbarnn.bench.peers import peers
from numbarnn.compile.backend import BACKEND
from numbarnn.compile.specialise import jit
from numbarnn.engines.gpu import launches
from numbarnn.kernels.persistent import exchange

LIMIT_S = 2.0
SMALL = Case("rnn_tanh", 3, 1, 5, (8,), gradients="y", dtype="float16")
CASES = [SMALL] if emulator.is_wanted() else [
    Case("lstm", 50, 16, 256, (256, 256), gradients="y", dtype="float16"),
    Case("lstm", 1024, 16, 768, (768,), gradients="y", dtype="float16"),
]  # fmt: skip


def silenced(make_publish):
    """`exchange.make_publish` for a kernel whose first block stores nothing."""

    def make(dtype, aligned):
        publish = make_publish(dtype, aligned)

        def silent(array, index, stored, valid):
            publish(array, index, stored, valid and cuda.blockIdx.x != 0)

        return jit(silent, BACKEND)

    return make


@pytest.mark.gpu
@pytest.mark.parametrize("backward", [False, True], ids=["forward", "backward"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_silent_block_ends_in_an_error(case, backward, monkeypatch):
    if emulator.is_wanted():  # each look takes long there
        monkeypatch.setattr(launches, "POLLS", 100)
        monkeypatch.setattr(launches, "POLLS_PER_STEP", 0)
    instance, engine = make_instance(case), engines.get("cuda")
    layer = make_layer(case, "cuda", instance.parameters, "persistent")
    x, state, dy = peers.inputs(layer, instance)
    tapes = [layer.forward(x, state)[2] for _ in range(2)]  # a tape whose backward failed stays so
    with altered({(exchange, "make_publish"): silenced(exchange.make_publish)}, engine):
        for tape in tapes:  # the first call compiles
            begin = time.perf_counter()
            with pytest.raises(RuntimeError, match="gave up: layer"), np.errstate(all="ignore"):
                layer.backward(tape, dy, retain=True) if backward else layer(x, state)
                layer.check()
    assert emulator.is_wanted() or time.perf_counter() - begin <= LIMIT_S
    assert all(row["ok"] for row in check_case(SMALL, "cuda", ("persistent",), with_torch=False))
