"""What `numbarnn info`, `check`, `bench`, `cells`, `plan`, `demo` and `kernels` run: one module per subcommand.

Each such module has `add_arguments(parser)` and `run(args) -> exit code`, and is imported only when asked for. Beside
them: `cases` (problems and their random data), `sequences` (lengths, padding, packing), `spreads` (which cases `check`
runs), `boundaries` (what their sizes have to cross), `runs` (what it lets layers compute), `expected` (what they
should), `accuracy` (errors and limits), `summary`, `page`, `pictures` (what `check` tells), `peers` (numbarnn and all
of its peers on the same problems: `torch_peer`, `onnx_peer`, `cudnn_peer`, each a `contender`), `torch_loop` (a traced
cell as a loop in PyTorch), `named_cells` (of a command line), `gantt` (pictures of plans), `planned` (the kernels a
planner cuts), `child` (the simulator in a process of its own) and `report` (tables, progress, JSON). Of times: `shapes`
(of problems), `lineup` (who runs them, and if they are right; `cudnn_contender`: cuDNN's algorithms), `timing` (turns,
the host's clock and the GPU's), `trust` (what speaks against a time), `record` (what a file of times carries),
`speed_table` (what `bench` prints) and `tables` (README's).
"""
