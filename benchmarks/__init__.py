"""Benchmarks: each module runs as `python -m benchmarks.NAME` and ends with one line of JSON."""
