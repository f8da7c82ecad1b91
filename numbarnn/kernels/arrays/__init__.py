"""Kernels on plain arrays: copies, masks, dropout, column sums."""
