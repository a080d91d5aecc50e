#include "quantized_rows.h"

#include <cfloat>
#include <limits>

namespace phloem {
namespace {

inline i32x16 larger(i32x16 a, i32x16 b) { return select(a > b, a, b); }

inline int32_t largest(i32x16 v) {
  return reduce(v, [](auto a, auto b) { return select(a > b, a, b); });
}

inline bool is_scale(float scale) { return scale >= FLT_MIN && scale <= FLT_MAX; }

inline i32x16 magnitude_bits(f32x16 a) { return (i32x16)abs(a); }

// Without their signs floats are ordered like the integers of their bits, infinity and then NaN
// above the rest: unlike a maximum of floats, that of the bits loses no NaN.
inline float largest_magnitude(i32x16 magnitudes) {
  const int32_t bits = largest(magnitudes);
  float magnitude;
  std::memcpy(&magnitude, &bits, sizeof magnitude);
  return magnitude;
}

inline void put(int8_t* to, i32x16 a, i32x16 b) {
  store_bytes(to, a);
  store_bytes(to + LANES, b);
}

inline void put(int16_t* to, i32x16 a, i32x16 b) {
  int32_t whole[GROUP];
  store(whole, a);
  store(whole + LANES, b);
  for (int i = 0; i < GROUP; ++i) {
    const int middle = i % 4 == 1 ? 1 : i % 4 == 2 ? -1 : 0;
    to[i] = static_cast<int16_t>(whole[i + middle]);
  }
}

template <class Q>
inline void quantize_group(const QuantizedRows& x, Q* q, size_t group, f32x16 a, f32x16 b) {
  constexpr float MOST = std::numeric_limits<Q>::max();
  const i32x16 x_a = magnitude_bits(a), x_b = magnitude_bits(b);
  float scale = largest_magnitude(larger(x_a, x_b)) / MOST;
  i32x16 q_a{}, q_b{};
  if (is_scale(scale)) {
    q_a = round_to_int(a / splat(scale));
    q_b = round_to_int(b / splat(scale));
  } else if (scale < FLT_MIN) {
    scale = 0.0f;
  }
  const int32_t sum = phloem::sum(q_a + q_b);
  put(q + group * GROUP, q_a, q_b);
  x.scales[group] = scale;
  x.offsets[group] = -128 * sum;
  x.scaled_sums[group] = scale * static_cast<float>(sum);
}

template <class Q>
void quantize_groups(const QuantizedRows& x, Q* q, int r, const float* values, int k) {
  size_t group = static_cast<size_t>(r) * x.groups;
  int i = 0;
  for (; i + GROUP <= k; i += GROUP)
    quantize_group(x, q, group++, load(values + i), load(values + i + LANES));
  if (i == k) return;
  const int rest = k - i;
  const f32x16 b = rest > LANES ? load_some(values + i + LANES, rest - LANES) : f32x16{};
  quantize_group(x, q, group, load_some(values + i, rest < LANES ? rest : LANES), b);
}

// Calls f(offset, elements, 0 beyond the row) for all vectors of a row's whole groups.
template <class F>
inline void each_vector(const QuantizedRows& x, const float* values, int k, F f) {
  int i = 0;
  for (; i + LANES <= k; i += LANES) f(i, load(values + i));
  for (; i < x.groups * GROUP; i += LANES)
    f(i, i < k ? load_some(values + i, k - i) : f32x16{});
}

void quantize_whole(const QuantizedRows& x, int r, const float* values, int k) {
  i32x16 magnitudes{};
  each_vector(x, values, k, [&](int, f32x16 v) {
    const i32x16 bits = magnitude_bits(v);
    magnitudes = larger(bits, magnitudes);
  });
  float scale = largest_magnitude(magnitudes) / 127.0f;
  const f32x16 factor = splat(is_scale(scale) ? 1.0f / scale : 0.0f);
  int8_t* q = x.q + static_cast<size_t>(r) * x.groups * GROUP;
  i32x16 sums{};
  each_vector(x, values, k, [&](int i, f32x16 v) {
    // Not a product with 0, which is NaN of what is not finite.
    const i32x16 whole = factor[0] == 0.0f ? i32x16{} : round_to_int(v * factor);
    sums += whole;
    store_bytes(q + i, whole);
  });
  const int32_t sum = phloem::sum(sums);
  if (scale < FLT_MIN) scale = 0.0f;
  x.scales[r] = scale;
  x.offsets[r] = -128 * sum;
  x.scaled_sums[r] = scale * static_cast<float>(sum);
}

}  // namespace

void quantize_row(const QuantizedRows& x, int r, const float* values, int k) {
  if (x.wide != nullptr) return quantize_groups(x, x.wide, r, values, k);
  if (x.scales_per_row == 1) return quantize_whole(x, r, values, k);
  quantize_groups(x, x.q, r, values, k);
}

}  // namespace phloem
