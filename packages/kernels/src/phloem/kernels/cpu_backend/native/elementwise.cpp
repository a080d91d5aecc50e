#include "elementwise.h"

#include <algorithm>
#include <cmath>

#include "simd.h"
#include "team.h"

namespace phloem {
namespace {

// Calls f(offset, n) for every run of n <= 16 elements.
template <class F>
inline void each_vector(int k, F f) {
  int i = 0;
  for (; i + LANES <= k; i += LANES) f(i, LANES);
  if (i < k) f(i, k - i);
}

inline f32x16 take(const float* p, int n) { return n == LANES ? load(p) : load_some(p, n); }

inline void put(float* p, f32x16 v, int n) {
  if (n == LANES)
    store(p, v);
  else
    store_some(p, v, n);
}

// The arithmetic of a quantized cache: every operation is one IEEE float32 operation, so that what
// is stored equals, bit for bit, what any other writer stores.
void store_int8(int8_t* to, float* scale, const float* x, int head_dim) {
  f32x16 largest{};
  each_vector(head_dim, [&](int i, int n) {
    const f32x16 a = abs(take(x + i, n));
    largest = select((a > largest) | (a != a), a, largest);
  });
  float amax = 0x1p-100f;
  for (int i = 0; i < LANES; ++i)
    amax = largest[i] > amax || largest[i] != largest[i] ? largest[i] : amax;
  *scale = amax / 127.0f;
  each_vector(head_dim, [&](int i, int n) {
    const i32x16 q = round_to_int(take(x + i, n) / *scale);
    if (n == LANES)
      store_bytes(to + i, q);
    else
      for (int lane = 0; lane < n; ++lane) to[i + lane] = static_cast<int8_t>(q[lane]);
  });
}

}  // namespace

void rms_norm(const float* x, const float* weight, float eps, int k, float* out) {
  f32x16 squares{};
  each_vector(k, [&](int i, int n) {
    const f32x16 v = take(x + i, n);
    squares = fma(v, v, squares);
  });
  const float factor = 1.0f / std::sqrt(sum(squares) / static_cast<float>(k) + eps);
  each_vector(k, [&](int i, int n) {
    put(out + i, take(x + i, n) * factor * take(weight + i, n), n);
  });
}

void silu_mul(const float* gate_up, int k, float* out) {
  each_vector(k, [&](int i, int n) {
    put(out + i, silu(take(gate_up + i, n)) * take(gate_up + k + i, n), n);
  });
}

void rotate(const float* head, const float* angles, int head_dim, float* to) {
  const int half = head_dim / 2;
  each_vector(half, [&](int i, int n) {
    const f32x16 low = take(head + i, n), high = take(head + half + i, n);
    const f32x16 cosine = take(angles + i, n), sine = take(angles + half + i, n);
    put(to + i, fma(low, cosine, -(high * sine)), n);
    put(to + half + i, fma(high, cosine, low * sine), n);
  });
}

void angles_of(int64_t position, const float* frequencies, int head_dim, float* angles) {
  const int half = head_dim / 2;
  for (int i = 0; i < half; ++i) {
    const float angle = static_cast<float>(position) * frequencies[i];
    angles[i] = std::cos(angle);
    angles[half + i] = std::sin(angle);
  }
}

void store_kv(const phloem_kv_layer& layer, const phloem_kv_part& part, int64_t slot,
              const float* x, int heads, int head_dim) {
  const int64_t page = slot / layer.page_size, token = slot % layer.page_size;
  const int64_t first = page * part.page + token * part.token;
  for (int h = 0; h < heads; ++h, x += head_dim) {
    const int64_t at = first + h * part.head;
    if (layer.dtype == PHLOEM_KV_F32) {
      std::copy(x, x + head_dim, static_cast<float*>(part.elements) + at);
    } else if (layer.dtype == PHLOEM_KV_BF16) {
      uint16_t* to = static_cast<uint16_t*>(part.elements) + at;
      each_vector(head_dim, [&](int i, int n) {
        uint16_t rounded[LANES];
        store_bf16(rounded, take(x + i, n));
        std::copy(rounded, rounded + n, to + i);
      });
    } else {
      const int64_t scale =
          page * part.scale_page + token * part.scale_token + h * part.scale_head;
      store_int8(static_cast<int8_t*>(part.elements) + at, part.scales + scale, x, head_dim);
    }
  }
}

}  // namespace phloem

using namespace phloem;

extern "C" {

// out [rows, k]: the norm of x, or, with a residual, of residual + x, which is kept in `sum`.
void phloem_rms_norm(Team* team, const float* x, const float* residual, const float* weight,
                     float eps, int rows, int k, float* sum, float* out) {
  team->run([=](Worker& w) {
    w.each(rows, [=](size_t r) {
      const float* row = x + r * k;
      if (residual != nullptr) {
        for (int i = 0; i < k; ++i) sum[r * k + i] = residual[r * k + i] + row[i];
        row = sum + r * k;
      }
      rms_norm(row, weight, eps, k, out + r * k);
    });
  });
}

void phloem_silu_mul(Team* team, const float* gate_up, int rows, int k, float* out) {
  team->run([=](Worker& w) {
    w.each(rows, [=](size_t r) { silu_mul(gate_up + r * 2 * k, k, out + r * k); });
  });
}

// Rotates q [T, heads, head_dim] and k [T, kv_heads, head_dim] in place by `angles` [T, head_dim]
// and stores k and v at `slots` unless `layer` is null; strides are from token to token.
void phloem_rotary_store_kv(Team* team, float* q, int64_t q_stride, int heads, float* k,
                            int64_t k_stride, const float* v, int64_t v_stride, int kv_heads,
                            int head_dim, int tokens, const float* angles,
                            const phloem_kv_layer* layer, const int64_t* slots) {
  team->run([=](Worker& w) {
    w.each(tokens, [=](size_t t) {
      const float* turn = angles + t * head_dim;
      const auto rotate_all = [=](float* head, int count) {
        for (float* end = head + count * head_dim; head < end; head += head_dim)
          rotate(head, turn, head_dim, head);
      };
      rotate_all(q + t * q_stride, heads);
      rotate_all(k + t * k_stride, kv_heads);
      if (layer == nullptr) return;
      store_kv(*layer, layer->k, slots[t], k + t * k_stride, kv_heads, head_dim);
      store_kv(*layer, layer->v, slots[t], v + t * v_stride, kv_heads, head_dim);
    });
  });
}
}
