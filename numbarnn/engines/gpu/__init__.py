"""The engines that run CUDA kernels, on a GPU or in a simulator."""
