// Vectors as wide as the machine's registers.
//
// Owns the few operations that compilers cannot be trusted to find (fused multiply-add, int8 dot
// products, conversions). simd.h makes vectors of 16 lanes of them; loops that must know how many
// registers they take use them as they are.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

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

namespace phloem {

template <class V, class T>
inline V load(const T* p) {
  V v;
  std::memcpy(&v, p, sizeof v);
  return v;
}

template <class V, class T>
inline void store(T* p, V v) {
  std::memcpy(p, &v, sizeof v);
}

// Of each lane a where the condition holds, else b.
template <class C, class V>
inline V select(C condition, V a, V b) {
  return condition ? a : b;
}

}  // namespace phloem

namespace phloem::native {

#if PHLOEM_AVX512
constexpr int WIDTH = 16;
#elif PHLOEM_AVX2
constexpr int WIDTH = 8;
#else
constexpr int WIDTH = 4;
#endif

typedef float Floats __attribute__((vector_size(4 * WIDTH)));
typedef int32_t Ints __attribute__((vector_size(4 * WIDTH)));
typedef uint32_t Words __attribute__((vector_size(4 * WIDTH)));
typedef int16_t Shorts __attribute__((vector_size(4 * WIDTH)));
typedef uint16_t UnsignedShorts __attribute__((vector_size(4 * WIDTH)));
typedef uint8_t Bytes __attribute__((vector_size(4 * WIDTH)));
// Of as many lanes:
typedef uint16_t Halves __attribute__((vector_size(2 * WIDTH)));
typedef int8_t SmallInts __attribute__((vector_size(WIDTH)));

// Keeps what is used more than once in a register: GCC would load it with each use.
template <class V>
inline V kept(V v) {
#if PHLOEM_AVX512
  asm("" : "+v"(v));
#elif PHLOEM_AVX2
  asm("" : "+x"(v));
#endif
  return v;
}

inline Ints splat(int32_t x) { return Ints{} + x; }
inline Floats splat(float x) {
  int32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return (Floats)splat(bits);
}
inline Bytes splat4(const void* p) {
  int32_t quad;
  std::memcpy(&quad, p, sizeof quad);
  return (Bytes)splat(quad);
}

// a * b + c, rounded once where the machine can.
inline Floats fma(Floats a, Floats b, Floats c) {
#if PHLOEM_AVX512
  return (Floats)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif PHLOEM_AVX2
  return (Floats)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#elif defined(__FP_FAST_FMAF)
  for (int i = 0; i < WIDTH; ++i) c[i] = __builtin_fmaf(a[i], b[i], c[i]);
  return c;
#else
  return a * b + c;
#endif
}

// a > b ? a : b, so b where one of them is NaN; min likewise. With AVX-512 GCC would take lanes
// apart, and warns of the intrinsics without a mask.
inline Floats max(Floats a, Floats b) {
#if PHLOEM_AVX512
  return (Floats)_mm512_maskz_max_ps(0xffff, (__m512)a, (__m512)b);
#elif PHLOEM_AVX2
  return (Floats)_mm256_max_ps((__m256)a, (__m256)b);
#else
  return a > b ? a : b;
#endif
}

inline Floats min(Floats a, Floats b) {
#if PHLOEM_AVX512
  return (Floats)_mm512_maskz_min_ps(0xffff, (__m512)a, (__m512)b);
#elif PHLOEM_AVX2
  return (Floats)_mm256_min_ps((__m256)a, (__m256)b);
#else
  return a < b ? a : b;
#endif
}

inline Floats to_float(Ints a) { return __builtin_convertvector(a, Floats); }

// Towards 0.
inline Ints to_int(Floats a) { return __builtin_convertvector(a, Ints); }

// To the nearest integer, ties to even, for |a| < 2^22: the sum leaves no bits for a fraction.
inline Ints round_to_int(Floats a) {
#if PHLOEM_AVX512
  // The masked form with all lanes: GCC 12 warns of its own header in the other one.
  return (Ints)_mm512_maskz_cvtps_epi32(0xffff, (__m512)a);
#elif PHLOEM_AVX2
  return (Ints)_mm256_cvtps_epi32((__m256)a);
#else
  const Floats magic = splat(12582912.0f);  // 1.5 * 2^23
  return (Ints)(a + magic) - (Ints)magic;
#endif
}

inline Words widen(Halves a) { return __builtin_convertvector(a, Words); }
inline Halves low_halves(Words a) { return __builtin_convertvector(a, Halves); }

// The lowest byte of each lane.
inline SmallInts low_bytes(Ints a) {
  // Compilers take the lanes apart for it.
#if PHLOEM_AVX512
  return (SmallInts)_mm512_maskz_cvtepi32_epi8((__mmask16)-1, (__m512i)a);
#elif PHLOEM_AVX2
  constexpr int8_t NONE = -1;
  const __m256i order = _mm256_setr_epi8(
      0, 4, 8, 12, NONE, NONE, NONE, NONE, NONE, NONE, NONE, NONE, NONE, NONE, NONE, NONE,
      NONE, NONE, NONE, NONE, 0, 4, 8, 12, NONE, NONE, NONE, NONE, NONE, NONE, NONE, NONE);
  const __m256i each = _mm256_shuffle_epi8((__m256i)a, order);
  const __m128i both =
      _mm_or_si128(_mm256_castsi256_si128(each), _mm256_extracti128_si256(each, 1));
  return load<SmallInts>(&both);
#else
  return __builtin_convertvector(a, SmallInts);
#endif
}

inline Floats load_f16(const uint16_t* p) {
#if PHLOEM_AVX512
  return (Floats)_mm512_maskz_cvtph_ps(0xffff, _mm256_loadu_si256((const __m256i*)p));
#elif PHLOEM_AVX2
  return (Floats)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p));
#else
  // Shift exponent and fraction into place; multiplying by 2^112 moves the bias of the exponent and
  // makes denormal numbers normal. Infinity and NaN keep a full exponent.
  const Words h = widen(load<Halves>(p));
  const Words sign = (h & 0x8000u) << 16, rest = (h & 0x7fffu) << 13;
  const Floats scaled = (Floats)rest * 0x1p112f;
  const Words special = rest | 0x7f800000u;
  return (Floats)((rest >= 0x0f800000u ? special : (Words)scaled) | sign);
#endif
}

// acc[i] += dot(u[4i..4i+3], s[4i..4i+3]), u unsigned, s signed; exact in 32 bits.
inline Ints dot4(Ints acc, Bytes u, Bytes s) {
#if PHLOEM_AVX512
  return (Ints)_mm512_dpbusd_epi32((__m512i)acc, (__m512i)u, (__m512i)s);
#else
  // A product of bytes fits 16 bits, the sum of two does not.
  const Shorts u_even = (Shorts)u & 0xff, u_odd = (Shorts)((UnsignedShorts)u >> 8);
  const Shorts s_even = (Shorts)s << 8 >> 8, s_odd = (Shorts)s >> 8;
#if PHLOEM_AVX2
  acc += (Ints)_mm256_madd_epi16((__m256i)u_even, (__m256i)s_even);
  return acc + (Ints)_mm256_madd_epi16((__m256i)u_odd, (__m256i)s_odd);
#elif defined(__SSE2__)
  acc += (Ints)__builtin_ia32_pmaddwd128(u_even, s_even);
  return acc + (Ints)__builtin_ia32_pmaddwd128(u_odd, s_odd);
#else
  const Ints even = (Ints)(u_even * s_even), odd = (Ints)(u_odd * s_odd);
  return acc + ((even << 16 >> 16) + (even >> 16)) + ((odd << 16 >> 16) + (odd >> 16));
#endif
#endif
}

// acc[i] += a[2i] * b[2i] + a[2i+1] * b[2i+1]; exact where that fits 32 bits.
inline Ints dot2(Ints acc, Shorts a, Shorts b) {
#if PHLOEM_AVX512
  return (Ints)_mm512_dpwssd_epi32((__m512i)acc, (__m512i)a, (__m512i)b);
#elif PHLOEM_AVX2
  return acc + (Ints)_mm256_madd_epi16((__m256i)a, (__m256i)b);
#elif defined(__SSE2__)
  return acc + (Ints)__builtin_ia32_pmaddwd128(a, b);
#else
  const Ints x = (Ints)a, y = (Ints)b;
  return acc + ((x << 16 >> 16) * (y << 16 >> 16) + (x >> 16) * (y >> 16));
#endif
}

// Four signed bytes of each lane as two pairs: the first and the third, the second and the fourth.
inline Shorts even_bytes(Bytes quads) { return (Shorts)quads << 8 >> 8; }
inline Shorts odd_bytes(Bytes quads) { return (Shorts)quads >> 8; }

// Bytes of a weight w, kept as w + 128, for products with bytes from -127 to 127: dots start at
// first_dots(-128 * the sum of the latter).
#if PHLOEM_AVX2

// |w| and the other's sign make products of which the sum of two fits 16 bits.
struct Weights {
  __m256i magnitudes, signs;
};

inline Weights weights(Bytes kept) {
  const __m256i w = (__m256i)(kept ^ 0x80);
  return {_mm256_abs_epi8(w), w};
}
inline Ints first_dots(int32_t) { return Ints{}; }
inline Ints add_dots(Ints dots, Weights w, Bytes x) {
  const __m256i products =
      _mm256_maddubs_epi16(w.magnitudes, _mm256_sign_epi8((__m256i)x, w.signs));
  return dots + (Ints)_mm256_madd_epi16(products, _mm256_set1_epi16(1));
}

#else

using Weights = Bytes;

inline Weights weights(Bytes kept) { return kept; }
inline Ints first_dots(int32_t offset) { return splat(offset); }
inline Ints add_dots(Ints dots, Weights w, Bytes x) { return dot4(dots, w, x); }

#endif

// acc[i] += dot(a[4i..4i+3], b[4i..4i+3]) of bytes from -127 to 127, both signed.
inline Ints signed_dot4(Ints acc, Bytes a, Bytes b) {
#if PHLOEM_AVX2
  return add_dots(acc, {_mm256_abs_epi8((__m256i)a), (__m256i)a}, b);
#else
  acc = dot2(acc, (Shorts)a << 8 >> 8, (Shorts)b << 8 >> 8);
  return dot2(acc, (Shorts)a >> 8, (Shorts)b >> 8);
#endif
}

// Sums of products of half bytes (0 to 15) with signed bytes (-127 to 127), eight times a lane's
// four: two products each time for 16 bits, which hold them. `total` is what dot4 would have made.
#if PHLOEM_AVX2

using NibbleSums = Shorts;

inline NibbleSums add_nibbles(NibbleSums sums, Bytes u, Bytes s) {
  return sums + (Shorts)_mm256_maddubs_epi16((__m256i)u, (__m256i)s);
}
inline Ints total(NibbleSums sums) {
  return (Ints)_mm256_madd_epi16((__m256i)sums, _mm256_set1_epi16(1));
}

#else

using NibbleSums = Ints;

inline NibbleSums add_nibbles(NibbleSums sums, Bytes u, Bytes s) { return dot4(sums, u, s); }
inline Ints total(NibbleSums sums) { return sums; }

#endif

}  // namespace phloem::native
