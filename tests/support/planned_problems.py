"""Problems whose persistent kernels the tests compile: there are as many kernels as tiles, too many to compile all.

Between them these problems have
- every dtype, every way to multiply, and rows that are aligned and not;
- every built-in cell, and cells with fewer gates of ah than of ax, or none, with sums over units or further products;
- projections, one layer and several, one direction and two.
"""

from functools import cache

from numbarnn.bench.planned import kernels_of, minimal_kernel, problem
from numbarnn.cells.library import additive_network, layer_norm_gru, layer_norm_lstm, peephole_lstm, sru
from numbarnn.kernels import catalog

PROBLEMS = (
    problem("lstm", "float16", (768,), 16),
    problem("lstm", "float16", (1024,), 64),
    problem("lstm", "float16", (512,) * 4, 64, dropout=0.2),
    problem("lstm", "float32", (512,), 64),
    problem("lstm", "float32", (512,), 64, training=False),
    problem("lstm", "float32", (64, 64, 64), 8, dropout=0.2),
    problem("lstm", "float16", (768,), 16, padded=True),
    problem(peephole_lstm, "float16", (768,), 16),
    problem(additive_network, "float16", (768, 768), 16),
    problem(sru, "float32", (512,), 64),
    problem("gru", "float32", (256,), 16, directions=2),
    problem("gru", "bfloat16", (130, 67), 16),
    problem("rnn_relu", "float16", (512,), 1),
    problem("rnn_tanh", "float32", (100,), 17),
    problem("rnn_relu", "float32", (256,), 16, splits_tf32=True),
    # Blocks exchange sums over units: the one that leaves fewest registers, and two layers in a launch.
    problem(layer_norm_lstm, "float32", (512,), 64),
    problem(layer_norm_gru, "float16", (512, 512), 16),
    problem("gru_reset_before", "float16", (512,), 16),  # and what a further product multiplies
    problem("lstm", "float16", (512,), 64, projection=256, padded=True),  # and what a projection does
    problem("lstm", "float32", (64, 64), 8, dropout=0.2, projection=32),
)
# Of 32 MiB, larger than registers or shared memory alone, which an A100 does not hold.
SM_90_PROBLEMS = (problem("rnn_tanh", "float16", (4096,), 64), problem("lstm", "float16", (2048,), 16, training=False))


@cache
def persistent_kernels(cc):
    """The ShippedKernels of PROBLEMS and, from compute capability 9.0 on, of SM_90_PROBLEMS."""
    return kernels_of(PROBLEMS + (SM_90_PROBLEMS if cc >= (9, 0) else ()), cc)


def shipped_kernels(cc):
    """All kernels: the catalog's, and those of the problems here."""
    return [*catalog.shipped_kernels(), *persistent_kernels(cc), minimal_kernel()]
