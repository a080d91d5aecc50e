// What happens to one token between the linears: norms, rotation, and the way into the KV cache.
//
// Plain functions of a row, to be called in tasks. Sums run over 16 lanes in ascending order.
#pragma once

#include <cstdint>

#include "phloem.h"

namespace phloem {

// out = x / sqrt(mean(x^2) + eps) * weight over k elements; out may be x.
void rms_norm(const float* x, const float* weight, float eps, int k, float* out);

// out[j] = silu(gate_up[j]) * gate_up[j + k] for j < k.
void silu_mul(const float* gate_up, int k, float* out);

// Rotates a head: element i pairs with i + head_dim / 2; `angles` are the cosines of the pairs, then
// their sines. `to` may be the head.
void rotate(const float* head, const float* angles, int head_dim, float* to);

// The angles of a position, [head_dim] floats: cosines, then sines, of position * frequency.
void angles_of(int64_t position, const float* frequencies, int head_dim, float* angles);

// Writes a token's heads, [heads, head_dim], to a slot, rounded to the dtype of the cache.
void store_kv(const phloem_kv_layer& layer, const phloem_kv_part& part, int64_t slot,
              const float* x, int heads, int head_dim);

}  // namespace phloem
