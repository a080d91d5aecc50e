#include "quantized_rows.h"

#include <cfloat>

namespace phloem {
namespace {

typedef int32_t i32x8 __attribute__((vector_size(32)));
typedef int32_t i32x4 __attribute__((vector_size(16)));

struct Pair {
  f32x16 a, b;
};

template <class Combine>
inline int32_t reduce(i32x16 v, Combine combine) {
  const i32x8 eight = combine(__builtin_shufflevector(v, v, 0, 1, 2, 3, 4, 5, 6, 7),
                              __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15));
  const i32x4 four = combine(__builtin_shufflevector(eight, eight, 0, 1, 2, 3),
                             __builtin_shufflevector(eight, eight, 4, 5, 6, 7));
  const i32x4 two = combine(four, __builtin_shufflevector(four, four, 2, 3, 0, 1));
  return combine(two, __builtin_shufflevector(two, two, 1, 0, 3, 2))[0];
}

inline int32_t largest(i32x16 v) {
  return reduce(v, [](auto a, auto b) { return a > b ? a : b; });
}

inline int32_t total(i32x16 v) {
  return reduce(v, [](auto a, auto b) { return a + b; });
}

// Without their signs floats are ordered like the integers of their bits, infinity and then NaN
// above the rest: unlike a maximum of floats, that of the bits loses no NaN.
inline float largest_magnitude(f32x16 a, f32x16 b) {
  const i32x16 x = (i32x16)abs(a), y = (i32x16)abs(b);
  const int32_t bits = largest(x > y ? x : y);
  float magnitude;
  std::memcpy(&magnitude, &bits, sizeof magnitude);
  return magnitude;
}

// Returns what is left of a and b.
inline Pair quantize_group(const QuantizedRows& x, size_t group, f32x16 a, f32x16 b) {
  float scale = largest_magnitude(a, b) / 127.0f;
  i32x16 q_a{}, q_b{};
  if (scale >= FLT_MIN && scale <= FLT_MAX) {
    q_a = round_to_int(a / splat(scale));
    q_b = round_to_int(b / splat(scale));
  } else if (scale < FLT_MIN) {
    scale = 0.0f;
  }
  const int32_t sum = total(q_a + q_b);
  int8_t* q = x.q + group * GROUP;
  store(q, __builtin_convertvector(q_a, i8x16));
  store(q + LANES, __builtin_convertvector(q_b, i8x16));
  x.scales[group] = scale;
  x.offsets[group] = -128 * sum;
  x.scaled_sums[group] = scale * static_cast<float>(sum);
  const f32x16 back = splat(-scale);
  return {fma(to_float(q_a), back, a), fma(to_float(q_b), back, b)};
}

inline void quantize_terms(const QuantizedRows& x, size_t group, f32x16 a, f32x16 b) {
  const Pair rest = quantize_group(x, group, a, b);
  if (x.terms == 2)
    quantize_group(x, group + static_cast<size_t>(x.rows) * x.groups, rest.a, rest.b);
}

}  // namespace

void quantize_row(const QuantizedRows& x, int r, const float* values, int k) {
  size_t group = static_cast<size_t>(r) * x.groups;
  int i = 0;
  for (; i + GROUP <= k; i += GROUP)
    quantize_terms(x, group++, load(values + i), load(values + i + LANES));
  if (i == k) return;
  const int rest = k - i;
  const f32x16 b = rest > LANES ? load_some(values + i + LANES, rest - LANES) : f32x16{};
  quantize_terms(x, group, load_some(values + i, rest < LANES ? rest : LANES), b);
}

}  // namespace phloem
