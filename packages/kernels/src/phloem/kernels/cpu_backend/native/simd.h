// Vectors of 16 lanes, the same on every machine: an AVX-512 register, two AVX2 ones, four of NEON.
//
// Kernels are written once, on these types. Owns the few operations that compilers cannot be
// trusted to find (fused multiply-add, int8 dot products, conversions) and the order in which
// lanes are summed. A lane's arithmetic never depends on the instruction set's width, so a kernel
// that keeps its loops in one order gives the same bits whatever it is tiled for.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace phloem {

constexpr int LANES = 16;

typedef float f32x16 __attribute__((vector_size(64)));
typedef int32_t i32x16 __attribute__((vector_size(64)));
typedef uint32_t u32x16 __attribute__((vector_size(64)));
typedef uint16_t u16x16 __attribute__((vector_size(32)));
typedef int8_t i8x16 __attribute__((vector_size(16)));
typedef uint8_t u8x64 __attribute__((vector_size(64)));

#if defined(__AVX512VNNI__) && defined(__AVX512BW__) && defined(__AVX512VL__) && \
    defined(__AVX512DQ__)
#define PHLOEM_AVX512 1
#else
#define PHLOEM_AVX512 0
#endif
#if !PHLOEM_AVX512 && defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#define PHLOEM_AVX2 1
#else
#define PHLOEM_AVX2 0
#endif

// Not f32x16{} + x: that takes an addition, because it makes 0 of -0.
inline f32x16 splat(float x) { return f32x16{x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x}; }
inline i32x16 splat(int32_t x) { return i32x16{} + x; }

#if PHLOEM_AVX2
struct FloatHalves {
  __m256 of[2];
};
struct IntHalves {
  __m256i of[2];
};

template <class To, class From>
inline To same_bits(const From& from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof to);
  return to;
}

inline FloatHalves halves(f32x16 v) { return same_bits<FloatHalves>(v); }
inline IntHalves halves(i32x16 v) { return same_bits<IntHalves>(v); }
inline f32x16 join(__m256 low, __m256 high) { return same_bits<f32x16>(FloatHalves{{low, high}}); }
inline i32x16 join(__m256i low, __m256i high) { return same_bits<i32x16>(IntHalves{{low, high}}); }

// f of both halves, where GCC 12 would take lanes apart.
template <class F, class... V>
inline auto in_halves(F f, V... v) {
  return [f](auto... h) { return join(f(h.of[0]...), f(h.of[1]...)); }(halves(v)...);
}
#endif

template <class V, class T>
inline V load(const T* p) {
  V v;
  std::memcpy(&v, p, sizeof v);
  return v;
}

inline f32x16 load(const float* p) { return load<f32x16>(p); }
inline i32x16 load(const int32_t* p) { return load<i32x16>(p); }

template <class V, class T>
inline void store(T* p, V v) {
  std::memcpy(p, &v, sizeof v);
}

// The first n (0 to 16) elements; the other lanes are 0 and not touched.
inline f32x16 load_some(const float* p, int n) {
#if PHLOEM_AVX512
  return (f32x16)_mm512_maskz_loadu_ps((__mmask16)((1u << n) - 1), p);
#else
  f32x16 v{};
  std::memcpy(&v, p, n * sizeof(float));
  return v;
#endif
}

inline void store_some(float* p, f32x16 v, int n) {
#if PHLOEM_AVX512
  _mm512_mask_storeu_ps(p, (__mmask16)((1u << n) - 1), (__m512)v);
#else
  std::memcpy(p, &v, n * sizeof(float));
#endif
}

// a * b + c, rounded once where the machine can.
inline f32x16 fma(f32x16 a, f32x16 b, f32x16 c) {
#if PHLOEM_AVX512
  return (f32x16)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif PHLOEM_AVX2
  return in_halves([](auto... x) { return _mm256_fmadd_ps(x...); }, a, b, c);
#elif defined(__FP_FAST_FMAF)
  for (int i = 0; i < LANES; ++i) c[i] = __builtin_fmaf(a[i], b[i], c[i]);
  return c;
#else
  return a * b + c;
#endif
}

// a > b ? a : b, so b where one of them is NaN; min likewise. GCC would take lanes apart, and with
// AVX-512 it warns of the intrinsics without a mask.
inline f32x16 max(f32x16 a, f32x16 b) {
#if PHLOEM_AVX512
  return (f32x16)_mm512_maskz_max_ps(0xffff, (__m512)a, (__m512)b);
#elif PHLOEM_AVX2
  return in_halves([](auto... x) { return _mm256_max_ps(x...); }, a, b);
#else
  return a > b ? a : b;
#endif
}

inline f32x16 min(f32x16 a, f32x16 b) {
#if PHLOEM_AVX512
  return (f32x16)_mm512_maskz_min_ps(0xffff, (__m512)a, (__m512)b);
#elif PHLOEM_AVX2
  return in_halves([](auto... x) { return _mm256_min_ps(x...); }, a, b);
#else
  return a < b ? a : b;
#endif
}

inline f32x16 abs(f32x16 a) { return (f32x16)((i32x16)a & 0x7fffffff); }

inline f32x16 to_float(i32x16 a) {
#if PHLOEM_AVX2
  return in_halves([](__m256i x) { return _mm256_cvtepi32_ps(x); }, a);
#else
  return __builtin_convertvector(a, f32x16);
#endif
}

// To the nearest integer, ties to even, for |a| < 2^22: the sum leaves no bits for a fraction.
inline i32x16 round_to_int(f32x16 a) {
#if PHLOEM_AVX512
  // The masked form with all lanes: GCC 12 warns of its own header in the other one.
  return (i32x16)_mm512_maskz_cvtps_epi32(0xffff, (__m512)a);
#elif PHLOEM_AVX2
  return in_halves([](__m256 x) { return _mm256_cvtps_epi32(x); }, a);
#else
  const f32x16 magic = splat(12582912.0f);  // 1.5 * 2^23
  return (i32x16)(a + magic) - (i32x16)magic;
#endif
}

// Lanes summed in a fixed order: halves, quarters, pairs.
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
  float x[LANES];
  store(x, v);
  for (int half = LANES / 2; half > 0; half /= 2)
    for (int i = 0; i < half; ++i) x[i] += x[i + half];
  return x[0];
#endif
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
  float x[LANES];
  store(x, v);
  for (int half = LANES / 2; half > 0; half /= 2)
    for (int i = 0; i < half; ++i) x[i] = x[i] > x[i + half] ? x[i] : x[i + half];
  return x[0];
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
#if PHLOEM_AVX2
  const auto kept = [](__m256 a, __m256 b) { return _mm256_cmp_ps(a, b, _CMP_NLT_UQ); };
  return (f32x16)((i32x16)p & (i32x16)in_halves(kept, x, low));
#else
  return (f32x16)((i32x16)p & ~(x < low));
#endif
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

inline f32x16 load_bf16(const uint16_t* p) {
  return (f32x16)(__builtin_convertvector(load<u16x16>(p), u32x16) << 16);
}

// To the nearest bfloat16, ties to even; NaN stays NaN.
inline void store_bf16(uint16_t* p, f32x16 v) {
  const u32x16 bits = (u32x16)v;
  u32x16 rounded = bits + 0x7fffu + ((bits >> 16) & 1u);
  rounded = (bits & 0x7fffffffu) > 0x7f800000u ? (bits | 0x400000u) : rounded;
  store(p, __builtin_convertvector(rounded >> 16, u16x16));
}

inline f32x16 load_f16(const uint16_t* p) {
#if PHLOEM_AVX512
  return (f32x16)_mm512_maskz_cvtph_ps(0xffff, _mm256_loadu_si256((const __m256i*)p));
#elif PHLOEM_AVX2
  __m256 halves[2] = {_mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p)),
                      _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)(p + 8)))};
  return load((const float*)halves);
#else
  // Shift exponent and fraction into place; multiplying by 2^112 moves the bias of the exponent and
  // makes denormal numbers normal. Infinity and NaN keep a full exponent.
  const u32x16 h = __builtin_convertvector(load<u16x16>(p), u32x16);
  const u32x16 sign = (h & 0x8000u) << 16, rest = (h & 0x7fffu) << 13;
  const f32x16 scaled = (f32x16)rest * 0x1p112f;
  const u32x16 special = rest | 0x7f800000u;
  return (f32x16)((rest >= 0x0f800000u ? special : (u32x16)scaled) | sign);
#endif
}

// Integers from -128 to 127 as bytes.
inline void store_bytes(int8_t* p, i32x16 v) {
#if PHLOEM_AVX512
  _mm512_mask_cvtepi32_storeu_epi8(p, 0xffff, (__m512i)v);
#else
  store(p, __builtin_convertvector(v, i8x16));
#endif
}

// acc[i] += dot(u[4i..4i+3], s[4i..4i+3]), u unsigned, s signed; exact in 32 bits.
inline i32x16 dot4(i32x16 acc, u8x64 u, u8x64 s) {
#if PHLOEM_AVX512
  return (i32x16)_mm512_dpbusd_epi32((__m512i)acc, (__m512i)u, (__m512i)s);
#elif PHLOEM_AVX2
  // vpmaddubsw would saturate: bytes are widened to 16 bits first.
  __m256i x[2], y[2], z[2];
  std::memcpy(x, &u, 64);
  std::memcpy(y, &s, 64);
  std::memcpy(z, &acc, 64);
  const __m256i even = _mm256_set1_epi16(0x00ff);
  for (int h = 0; h < 2; ++h) {
    const __m256i u_even = _mm256_and_si256(x[h], even), u_odd = _mm256_srli_epi16(x[h], 8);
    const __m256i s_even = _mm256_srai_epi16(_mm256_slli_epi16(y[h], 8), 8);
    const __m256i s_odd = _mm256_srai_epi16(y[h], 8);
    z[h] = _mm256_add_epi32(z[h], _mm256_madd_epi16(u_even, s_even));
    z[h] = _mm256_add_epi32(z[h], _mm256_madd_epi16(u_odd, s_odd));
  }
  std::memcpy(&acc, z, 64);
  return acc;
#else
  const uint8_t* a = (const uint8_t*)&u;
  const int8_t* b = (const int8_t*)&s;
  for (int i = 0; i < LANES; ++i)
    acc[i] += a[4 * i] * b[4 * i] + a[4 * i + 1] * b[4 * i + 1] + a[4 * i + 2] * b[4 * i + 2] +
              a[4 * i + 3] * b[4 * i + 3];
  return acc;
#endif
}

}  // namespace phloem
