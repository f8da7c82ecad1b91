"""What the commands of `numbarnn` run.

A command's module has `add_arguments(parser)` and `run(args) -> exit code`. `numbarnn.cli` imports it when its command
is asked for.

    info, cells, report             commands of one file; cells are found by name there, for all commands
    demo, charmodel                 `demo`; the character model and its text, which the course has too
    plan, gantt                     `plan`; pictures of plans
    kernels, planned, source        `kernels`; kernels as a planner tiles them; a kernel's source without dead code
    check/                          `check`: results against float64 and peers, and how far they may be off
    speed/                          `bench`: who is timed, in turns; what speaks against a time; records and tables
    trace/                          `trace`: what each block of a pass does and waits for, as a page that plays it

    cases/                          what is checked and timed: sizes and options (cases), their arrays (instances)
    peers/                          numbarnn, PyTorch, onnxruntime and cuDNN on these instances
    results/                        records of times
    console, report_plots           what commands print and write, and their types of arguments; pictures of the report
"""
