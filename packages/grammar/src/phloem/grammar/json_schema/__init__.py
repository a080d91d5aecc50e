"""JSON schemas brought into a normal form that a machine can follow; see `shape` for the form."""
