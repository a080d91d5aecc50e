"""The kernels of the `cpu` backend against the torch reference and against the machine."""
