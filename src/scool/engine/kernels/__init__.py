"""Triton kernels for stacked clients."""
