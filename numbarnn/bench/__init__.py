"""The commands of `numbarnn`: a module each, with `add_arguments(parser)` and `run(args) -> exit code`.

info, report, demo, plan     commands of one file; charmodel: the character model of demo and of the course
check                        results against float64 and peers: rows of cases (spreads) compared (accuracy, expected)
speed                        `bench`: cases -> peers (lineup, custom_cells, stream) -> times (timing, memory) -> rows
record, tables               the JSON file of rows, and which times are in doubt; the printed table
kernels, planned             `kernels`; persistent kernels as the planner tiles them for a problem
trace/                       `trace`: what each block of a pass does and waits for, as an animated page
cases, shapes, cells         options, sizes and arrays of checked and timed cases; sets of sizes; cells by name
peers/                       numbarnn, PyTorch, onnxruntime and cuDNN on these cases
console                      printed and written output, and types of arguments
"""
