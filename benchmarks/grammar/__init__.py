"""Benchmarks of constraints: masks and compile times beside the libraries of others."""
