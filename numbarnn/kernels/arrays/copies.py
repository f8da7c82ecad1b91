"""Copy between layouts and dtypes, repeat x for each gate (CUDNN_SKIP_INPUT: x replaces W x), and place diagonal
blocks.

Every kernel is 2-D and grid-stride over columns (x) and rows (y), so that any grid is correct.
"""

from numbarnn.common.precision import compute_type
from numbarnn.compile import storage, units
from numbarnn.cuda.backend import per_backend
from numbarnn.cuda.language import cuda
from numbarnn.cuda.launch import Kernel
from numbarnn.kernels.grid import launch_config


@per_backend
def make_copy(out_dtype=None, x_dtype=None):
    """Make the kernel that copies within a dtype, or converts between a 16-bit dtype and float32."""
    same = out_dtype == x_dtype
    widen = units.unchanged() if same else storage.widen(x_dtype)
    narrow = units.unchanged() if same else storage.narrow(out_dtype)

    @cuda.jit
    def copy_kernel(out, x):
        """Copy: out = x.

        Writes   out (X, Y, Z), any strides; 32-bit x is rounded to nearest even for 16-bit out
        Reads    x (X, Y, Z), any strides: a transpose is a copy of a view
        """
        X, Y, Z = x.shape
        for i in range(X):
            for j in range(cuda.blockIdx.y, Y, cuda.gridDim.y):
                for k in range(cuda.grid(1), Z, cuda.gridsize(1)):
                    out[i, j, k] = narrow(widen(x[i, j, k]))

    return Kernel(copy_kernel, "copy" if same else f"copy_{x_dtype}_to_{out_dtype}")


def copy(out, x):
    """Copy out = x, arrays of one shape of up to 3 axes with any strides. dtypes: equal, or a pair of `make_copy`."""
    if not x.size:
        return
    dtypes = () if out.dtype == x.dtype else (out.dtype.name, x.dtype.name)
    while out.ndim < 3:
        out, x = out[None], x[None]
    make_copy(*dtypes).bind(launch_config(*x.shape[1:]), storage.stored(out), storage.stored(x))()


@per_backend
def make_spread():
    """Make the kernel for any dtype."""

    @cuda.jit
    def spread_kernel(out, x, gates):
        """Repeat x for each gate: out[m, g H + j] = x[m, j].

        Writes   out (M, G*H), rows at any stride
        Reads    x (M, H), rows at any stride; gates = G
        """
        M, H = x.shape
        for m in range(cuda.blockIdx.y, M, cuda.gridDim.y):
            for j in range(cuda.grid(1), H, cuda.gridsize(1)):
                for g in range(gates):
                    out[m, g * H + j] = x[m, j]

    return Kernel(spread_kernel, "spread")


def spread(out, x, gates):
    """Repeat x (M, H) for each of G gates: out (M, G*H)."""
    make_spread().bind(launch_config(*x.shape), storage.stored(out), storage.stored(x))(gates)


@per_backend
def make_sum_gates(dtype, accumulate):
    """Make the kernel for one dtype."""
    widen, narrow = storage.widen(dtype), storage.narrow(dtype)
    zero = compute_type(dtype)(0)

    @cuda.jit
    def sum_gates_kernel(out, x, gates):
        """Sum over gates: out[m, j] = sum over g of x[m, g H + j], or += with `accumulate`.

        Writes   out (M, H), contiguous
        Reads    x (M, G*H), rows at any stride; gates = G
        """
        M, H = out.shape
        for m in range(cuda.blockIdx.y, M, cuda.gridDim.y):
            for j in range(cuda.grid(1), H, cuda.gridsize(1)):
                total = widen(out[m, j]) if accumulate else zero
                for g in range(gates):
                    total += widen(x[m, g * H + j])
                out[m, j] = narrow(total)

    return Kernel(sum_gates_kernel, "sum_gates_accumulate" if accumulate else "sum_gates")


def sum_gates(out, x, gates, accumulate):
    """Sum x (M, G*H) over its gates into out (M, H), or add the sum to out."""
    kernel = make_sum_gates(x.dtype.name, accumulate)
    kernel.bind(launch_config(*out.shape), storage.stored(out), storage.stored(x))(gates)


@per_backend
def make_spread_blocks():
    """Make the kernel for any dtype."""

    @cuda.jit
    def spread_blocks_kernel(out, x, gates):
        """Set out[g H + j, k P/n + i] = x[g H + j, i] for head k = j div (H/n), and 0 for the other heads.

        Writes   out (G*H, P), contiguous
        Reads    x (G*H, P/n), contiguous; gates = G; n divides H and P
        """
        (rows, columns), width = out.shape, x.shape[1]
        H, size = rows // gates, rows // gates * width // columns
        for row in range(cuda.blockIdx.y, rows, cuda.gridDim.y):
            first = row % H // size * width
            for column in range(cuda.grid(1), columns, cuda.gridsize(1)):
                if first <= column and column < first + width:
                    out[row, column] = x[row, column - first]
                else:
                    out[row, column] = 0

    return Kernel(spread_blocks_kernel, "spread_blocks")


def spread_blocks(out, x, gates):
    """Fill out (G*H, P) with the dense matrix of x (G*H, P/n): for each of G gates a block diagonal of n heads."""
    make_spread_blocks().bind(launch_config(*out.shape), storage.stored(out), storage.stored(x))(gates)
