"""What `numbarnn info`, `check`, `bench`, `cells`, `plan`, `trace`, `demo` and `kernels` run.

Each command's module has `add_arguments(parser)` and `run(args) -> exit code`, and is imported only when asked for.

    cases/      cases: sizes and options; their instances: random arrays; and which of them `check` runs
    peers/      numbarnn and its peers on these instances: PyTorch, onnxruntime, cuDNN called directly
    check/      `numbarnn check`: what results should be, how far they may be off, and what is told of them
    speed/      `numbarnn bench`: who is timed, in turns, what speaks against a time, records and tables
    demo/       `numbarnn demo`: a character model in training
    trace/      `numbarnn trace`: a pass as a page that one can watch
    results/    recorded times, of which `tables` writes README's

Each other command is a module here; `own_cells` is `numbarnn cells`. Beside them: `gantt` (pictures of plans),
`planned` (the kernels a planner cuts), `pages` (what pages have in common) and `report` (tables, progress, JSON).
"""
