"""Native kernels for processors: C++ behind a C ABI, compiled on first use for this machine."""
