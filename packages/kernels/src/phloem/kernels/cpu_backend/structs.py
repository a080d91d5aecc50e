"""The structs of `native/phloem.h` as ctypes sees them, field by field in the same order."""

from __future__ import annotations

import ctypes

F32, Q8, Q4, I8 = 0, 1, 2, 3
"""Kinds of weights."""

KV_F32, KV_BF16, KV_I8 = 0, 1, 2
"""Dtypes of a KV cache."""


class Weight(ctypes.Structure):
    """`phloem_weight`"""

    _fields_ = (
        ("kind", ctypes.c_int32),
        ("n", ctypes.c_int32),
        ("k", ctypes.c_int32),
        ("input_bits", ctypes.c_int32),
        ("packed", ctypes.c_void_p),
        ("bias", ctypes.c_void_p),
    )


class KVPart(ctypes.Structure):
    """`phloem_kv_part`"""

    _fields_ = (
        ("elements", ctypes.c_void_p),
        ("scales", ctypes.c_void_p),
        ("page", ctypes.c_int64),
        ("token", ctypes.c_int64),
        ("head", ctypes.c_int64),
        ("scale_page", ctypes.c_int64),
        ("scale_token", ctypes.c_int64),
        ("scale_head", ctypes.c_int64),
    )


class KVLayerStruct(ctypes.Structure):
    """`phloem_kv_layer`"""

    _fields_ = (
        ("dtype", ctypes.c_int32),
        ("page_size", ctypes.c_int32),
        ("k", KVPart),
        ("v", KVPart),
    )
