"""What the commands of `numbarnn` run: a module each, with `add_arguments(parser)` and `run(args) -> exit code`.

info, report, demo, plan        commands of one file; charmodel: the character model of demo and of the course
check                           results against float64 and peers; accuracy: how far they may be off; expected: what
                                they should be; spreads: which cases are run
speed                           `bench`: lineup (peers), custom_cells, stream, timing, memory, record, tables
kernels, planned, source        `kernels`; kernels as a planner tiles them; a kernel's source without dead code
trace/                          `trace`: what each block of a pass does and waits for, as a page that plays it
cases, sequences, shapes        what is checked and timed: options, arrays, lengths; named sets of sizes
cells                           cells by name, for all commands
peers/                          numbarnn, PyTorch, onnxruntime and cuDNN on these cases
console                         what commands print and write, and their types of arguments
"""
