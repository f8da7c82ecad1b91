"""What the commands of `numbarnn` run.

A command's module has `add_arguments(parser)` and `run(args) -> exit code`. `numbarnn.cli` imports it when its command
is asked for.

    check/                          `check`: results against float64 and peers, and how far they may be off
    speed/                          `bench`: who is timed, in turns; what speaks against a time; records and tables
    report/                         `report`: records side by side as a page, or against a former one
    demo/                           `demo`: a character model in training
    trace/                          `trace`: what each block of a pass does and waits for, as a page that plays it
    info                            `info`
    own_cells, named_cells          `cells`; cells that are asked for by name, by this and other commands
    plan, gantt                     `plan`; pictures of plans
    kernels, planned, machine_code  `kernels`; kernels as a planner tiles them; what their machine code does, counted
    source, reducer                 a kernel's source without the code that it never runs; how a syntax tree is reduced

    cases/                          what is checked and timed: sizes and options (cases), their arrays (instances)
    peers/                          numbarnn, PyTorch, onnxruntime and cuDNN on these instances
    results/                        records of times
    tables, calibrate               made of the records: the tables in README and `speed.md`; the planner's numbers
    console, pages                  what commands print and write, and their types of arguments; parts of HTML pages
"""
