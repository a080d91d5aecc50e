// Vectors of 16 lanes, the same on every machine: an AVX-512 register, two AVX2 ones, four of NEON.
//
// Kernels are written once, on these types. Owns the order in which lanes are summed, and what is
// made of the machine's operations (native.h). A lane's arithmetic never depends on the instruction
// set's width, so a kernel that keeps its loops in one order gives the same bits whatever it is
// tiled for.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "native.h"
#include "twice.h"

namespace phloem {

constexpr int LANES = 16;

#if PHLOEM_AVX512
template <class V>
using Sixteen = V;
#elif PHLOEM_AVX2
template <class V>
using Sixteen = Twice<V>;
#else
template <class V>
using Sixteen = Twice<Twice<V>>;
#endif

using f32x16 = Sixteen<native::Floats>;
using i32x16 = Sixteen<native::Ints>;
using u32x16 = Sixteen<native::Words>;
using u16x16 = Sixteen<native::Halves>;
using i8x16 = Sixteen<native::SmallInts>;
using u8x64 = Sixteen<native::Bytes>;
using i16x32 = Sixteen<native::Shorts>;

using native::dot2;
using native::dot4;
using native::even_bytes;
using native::fma;
using native::low_bytes;
using native::low_halves;
using native::max;
using native::min;
using native::odd_bytes;
using native::round_to_int;
using native::signed_dot4;
using native::to_float;
using native::to_int;
using native::widen;

#define PHLOEM_IN_HALVES(NAME)                                                         \
  template <class H, class... V>                                                       \
  inline auto NAME(Twice<H> a, V... b) {                                               \
    return Twice(NAME(a.low, b.low...), NAME(a.high, b.high...));                      \
  }
PHLOEM_IN_HALVES(dot2)
PHLOEM_IN_HALVES(dot4)
PHLOEM_IN_HALVES(even_bytes)
PHLOEM_IN_HALVES(fma)
PHLOEM_IN_HALVES(low_bytes)
PHLOEM_IN_HALVES(low_halves)
PHLOEM_IN_HALVES(max)
PHLOEM_IN_HALVES(min)
PHLOEM_IN_HALVES(odd_bytes)
PHLOEM_IN_HALVES(round_to_int)
PHLOEM_IN_HALVES(signed_dot4)
PHLOEM_IN_HALVES(to_float)
PHLOEM_IN_HALVES(to_int)
PHLOEM_IN_HALVES(widen)
#undef PHLOEM_IN_HALVES

inline i32x16 splat(int32_t x) { return i32x16{} + x; }
inline f32x16 splat(float x) {
#if PHLOEM_AVX512
  // Not f32x16{} + x: that takes an addition, because it makes 0 of -0.
  return f32x16{x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x};
#else
  int32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return (f32x16)splat(bits);
#endif
}

inline f32x16 load(const float* p) { return load<f32x16>(p); }
inline i32x16 load(const int32_t* p) { return load<i32x16>(p); }

inline i32x16 lane_numbers() {
  alignas(64) static constexpr int32_t NUMBERS[LANES] = {0, 1, 2,  3,  4,  5,  6,  7,
                                                         8, 9, 10, 11, 12, 13, 14, 15};
  return load(NUMBERS);
}

// The first n (0 to 16) elements; the other lanes are 0 and not touched.
inline f32x16 load_some(const float* p, int n) {
#if PHLOEM_AVX512
  return (f32x16)_mm512_maskz_loadu_ps((__mmask16)((1u << n) - 1), p);
#elif PHLOEM_AVX2
  const i32x16 wanted = lane_numbers() < splat(n);
  return {(native::Floats)_mm256_maskload_ps(p, (__m256i)wanted.low),
          (native::Floats)_mm256_maskload_ps(p + native::WIDTH, (__m256i)wanted.high)};
#else
  float v[LANES]{};
  std::memcpy(v, p, n * sizeof(float));
  return load(v);
#endif
}

inline void store_some(float* p, f32x16 v, int n) {
#if PHLOEM_AVX512
  _mm512_mask_storeu_ps(p, (__mmask16)((1u << n) - 1), (__m512)v);
#else
  float lanes[LANES];
  store(lanes, v);
  std::memcpy(p, lanes, n * sizeof(float));
#endif
}

inline f32x16 abs(f32x16 a) { return (f32x16)((i32x16)a & 0x7fffffff); }

// Lanes combined in a fixed order: halves, quarters, pairs.
template <class V, class Combine>
inline auto reduce(V v, Combine combine) {
  if constexpr (IS_TWICE<V>) {
    return reduce(combine(v.low, v.high), combine);
  } else if constexpr (sizeof v == 64) {
    return reduce(combine(__builtin_shufflevector(v, v, 0, 1, 2, 3, 4, 5, 6, 7),
                          __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15)),
                  combine);
  } else if constexpr (sizeof v == 32) {
    return reduce(combine(__builtin_shufflevector(v, v, 0, 1, 2, 3),
                          __builtin_shufflevector(v, v, 4, 5, 6, 7)),
                  combine);
  } else {
    const V two = combine(v, __builtin_shufflevector(v, v, 2, 3, 0, 1));
    return combine(two, __builtin_shufflevector(two, two, 1, 0, 3, 2))[0];
  }
}

inline float sum(f32x16 v) {
#if PHLOEM_AVX512
  const __mmask8 all = -1;  // GCC 12 warns of the forms without a mask
  const __m512 x = (__m512)v;
  const __m256 half = _mm256_add_ps(_mm512_maskz_extractf32x8_ps(all, x, 0),
                                    _mm512_maskz_extractf32x8_ps(all, x, 1));
  const __m128 quarter = _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
  const __m128 pair = _mm_add_ps(quarter, _mm_movehl_ps(quarter, quarter));
  return _mm_cvtss_f32(_mm_add_ss(pair, _mm_movehdup_ps(pair)));
#else
  return reduce(v, [](auto a, auto b) { return a + b; });
#endif
}

inline int32_t sum(i32x16 v) {
  return reduce(v, [](auto a, auto b) { return a + b; });
}

inline float max_lane(f32x16 v) {
#if PHLOEM_AVX512
  const __mmask8 all = -1;  // GCC 12 warns of the forms without a mask
  const __m512 x = (__m512)v;
  const __m256 half = _mm256_max_ps(_mm512_maskz_extractf32x8_ps(all, x, 0),
                                    _mm512_maskz_extractf32x8_ps(all, x, 1));
  const __m128 quarter = _mm_max_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
  const __m128 pair = _mm_max_ps(quarter, _mm_movehl_ps(quarter, quarter));
  return _mm_cvtss_f32(_mm_max_ss(pair, _mm_movehdup_ps(pair)));
#else
  return reduce(v, [](auto a, auto b) { return select(a > b, a, b); });
#endif
}

// p * 2^n for whole n from -126 to 128, and 0 where x < low.
inline f32x16 scale_exp(f32x16 p, f32x16 n, f32x16 x, f32x16 low) {
#if PHLOEM_AVX512
  const __mmask16 kept = _mm512_cmp_ps_mask((__m512)x, (__m512)low, _CMP_NLT_UQ);
  return (f32x16)_mm512_maskz_scalef_ps(kept, (__m512)p, (__m512)n);
#else
  // In two halves, since 2^128 is no float.
  const i32x16 whole = round_to_int(n), half = whole >> 1;
  const f32x16 first = (f32x16)((half + 127) << 23);
  const f32x16 second = (f32x16)((whole - half + 127) << 23);
  p = p * first * second;
  return (f32x16)((i32x16)p & ~(x < low));
#endif
}

// e^x within 2 ulp; 0 below -87.3, infinity above 88.7, NaN of NaN. Cody-Waite reduction to
// [-ln2/2, ln2/2], then a minimax polynomial of degree 6.
inline f32x16 exp(f32x16 x) {
  const f32x16 low = splat(-87.33654f);
  const f32x16 clamped = min(splat(89.0f), max(low, x));
  const f32x16 n = to_float(round_to_int(clamped * 1.44269504f));
  f32x16 r = fma(n, splat(-0.693359375f), clamped);
  r = fma(n, splat(2.12194440e-4f), r);
  f32x16 p = splat(1.9875691500e-4f);
  p = fma(p, r, splat(1.3981999507e-3f));
  p = fma(p, r, splat(8.3334519073e-3f));
  p = fma(p, r, splat(4.1665795894e-2f));
  p = fma(p, r, splat(1.6666665459e-1f));
  p = fma(p, r, splat(5.0000001201e-1f));
  p = fma(p, r * r, r + 1.0f);
  return scale_exp(p, n, x, low);
}

inline f32x16 silu(f32x16 x) { return x / (exp(-x) + 1.0f); }

inline f32x16 load_bf16(const uint16_t* p) { return (f32x16)(widen(load<u16x16>(p)) << 16); }

// To the nearest bfloat16, ties to even; NaN stays NaN.
inline void store_bf16(uint16_t* p, f32x16 v) {
  const u32x16 bits = (u32x16)v;
  const u32x16 rounded = bits + 0x7fffu + ((bits >> 16) & 1u);
  const u32x16 kept = select((bits & 0x7fffffffu) > 0x7f800000u, bits | 0x400000u, rounded);
  store(p, low_halves(kept >> 16));
}

template <class V = f32x16>
inline V load_f16(const uint16_t* p) {
  if constexpr (IS_TWICE<V>) {
    using H = decltype(V::low);
    return {load_f16<H>(p), load_f16<H>(p + sizeof(H) / sizeof(float))};
  } else {
    return native::load_f16(p);
  }
}

// Integers from -128 to 127 as bytes.
inline void store_bytes(int8_t* p, i32x16 v) {
#if PHLOEM_AVX512
  _mm512_mask_cvtepi32_storeu_epi8(p, 0xffff, (__m512i)v);
#else
  store(p, low_bytes(v));
#endif
}

}  // namespace phloem
