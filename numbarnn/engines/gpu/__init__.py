"""The engines that run CUDA kernels: on a GPU, and in the simulator of one."""
