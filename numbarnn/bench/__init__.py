"""What `numbarnn info`, `check`, `bench`, `plan`, `demo` and `kernels` run: one module per subcommand.

Each such module has `add_arguments(parser)` and `run(args) -> exit code`, and is imported only when asked
for. Beside them: `cases` (problems and their random data), `accuracy` (errors and limits), `peers`
(PyTorch and onnxruntime on the same problems), `timing` (turns, the host's clock and the GPU's), `gantt`
(pictures of plans), `planned` (the kernels a planner cuts), `child` (the simulator in a process of its own) and
`report` (tables, progress, JSON).
"""
