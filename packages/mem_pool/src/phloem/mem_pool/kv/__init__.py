"""The KV tensors: what a token leaves in each layer, one place for each slot. Needs torch.

`KVShape` says what is kept and sizes it; `KVPool` holds it. Elements are floats of any width, or
int8 or fp8 with a scale for each token and head (`quantization`).
"""

from phloem.mem_pool.kv.layers import KVLayer, LatentKVLayer
from phloem.mem_pool.kv.pool import KVPool
from phloem.mem_pool.kv.quantization import Quantized, dequantize, quantize
from phloem.mem_pool.kv.shape import DTYPES, KVShape

__all__ = [
    "DTYPES",
    "KVLayer",
    "KVPool",
    "KVShape",
    "LatentKVLayer",
    "Quantized",
    "dequantize",
    "quantize",
]
