"""CUDA kernels: every step but the matrix products, and how kernels are compiled and launched."""
