"""No function takes more than eight arguments, but kernels, and what others than us laid down. A further argument of a
call belongs into one of the groups that the call already takes."""

import ast
from pathlib import Path

import numbarnn

ROOT = Path(numbarnn.__file__).parent
MOST, MOST_OF_KERNELS = 8, 12
# The CPU's products in registers and caches: what a @cuda.jit kernel is on a GPU.
KERNEL_MODULES = tuple(f"engines/cpu/{name}.py" for name in ("panels", "vectors"))
FOREIGN = {  # (file, function) -> who laid its arguments down
    ("engines/cpu/products.py", "_blas"): "BLAS' gemm",
    ("functional.py", "backward_data"): "cudnnRNNBackwardData_v8",
    ("layers/models.py", "__init__"): "torch.nn.LSTM and torch.nn.GRU, and our own options after their own",
    ("layers/recurrent.py", "jvp"): "forward's own arguments, and what they move by",
    ("layers/stack.py", "__init__"): "torch.nn.LSTM, and our own options after its own",
    ("torch/modules.py", "__init__"): "torch.nn.LSTM, and our own options after its own",
    ("torch/operators.py", "rnn_forward"): "torch.library: an operator's schema has no groups",
    ("torch/operators.py", "rnn_backward"): "torch.library: an operator's schema has no groups",
    ("torch/operators.py", "_"): "torch.library: fakes take what their operators take",
    ("torch/operators.py", "rnn_tangents"): "torch.library: an operator's schema has no groups",
    ("torch/second_order.py", "forward"): "torch.autograd.Function: sees tensors that are arguments of their own alone",
}  # fmt: skip
TYPING = ("self", "cls", "typing_context")  # given by Python and by compilers, not by callers


def signatures():
    """(file, function, how many arguments it has) of all functions of the package; * and ** are not counted."""
    for path in sorted(ROOT.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
                given = [one.arg for one in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]
                count = len(given) - (given[:1] != [] and given[0] in TYPING)
                yield path.relative_to(ROOT).as_posix(), getattr(node, "name", "lambda"), count


def is_kernel(path, name):
    return path in KERNEL_MODULES or (path.startswith("kernels/") and name.endswith("_kernel"))


def test_signatures_are_short():
    long = {
        f"{path}: {name} takes {count}"
        for path, name, count in signatures()
        if count > (MOST_OF_KERNELS if is_kernel(path, name) else MOST) and (path, name) not in FOREIGN
    }
    assert long == set()


def test_foreign_signatures_are_long_ones_that_exist():
    assert FOREIGN.keys() <= {(path, name) for path, name, count in signatures() if count > MOST}
