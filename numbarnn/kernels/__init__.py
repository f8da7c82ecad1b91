"""CUDA kernels: every step that is not a matrix product, and how kernels are compiled and launched."""
