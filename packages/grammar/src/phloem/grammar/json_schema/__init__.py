"""JSON schemas brought into a normal form that a machine can follow; see `shape` for the form."""

from phloem.grammar.json_schema.normalize import load_schema, normalize

__all__ = ["load_schema", "normalize"]
