"""Measuring kernels, and keeping with each number where it came from."""
