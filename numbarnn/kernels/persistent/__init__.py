"""Kernels that run all steps of several layers in one launch: tiles of the weights stay on the chip."""
