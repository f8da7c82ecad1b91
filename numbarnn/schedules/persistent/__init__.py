"""The persistent schedule: what a launch computes, how it is cut for a device, and the tables its kernels read."""
