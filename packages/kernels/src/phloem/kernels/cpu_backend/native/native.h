// Vectors as wide as the machine's registers, for loops that must stay in registers.
//
// Compilers keep the 16 lanes of simd.h in memory where a register has fewer: a loop over sums of
// them then waits for its own stores. Here are the few operations that linears need on 16, 8 or 4
// lanes. A lane's arithmetic is that of simd.h.
#pragma once

#include <cstdint>

#include "simd.h"

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
typedef uint16_t Halves __attribute__((vector_size(2 * WIDTH)));
typedef uint8_t Bytes __attribute__((vector_size(4 * WIDTH)));

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

inline Floats to_float(Ints a) { return __builtin_convertvector(a, Floats); }

inline Floats fma(Floats a, Floats b, Floats c) {
#if PHLOEM_AVX512
  return phloem::fma(a, b, c);
#elif PHLOEM_AVX2
  return (Floats)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#elif defined(__FP_FAST_FMAF)
  for (int i = 0; i < WIDTH; ++i) c[i] = __builtin_fmaf(a[i], b[i], c[i]);
  return c;
#else
  return a * b + c;
#endif
}

inline Floats load_f16(const uint16_t* p) {
#if PHLOEM_AVX512
  return phloem::load_f16(p);
#elif PHLOEM_AVX2
  return (Floats)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p));
#else
  // As in simd.h.
  const Words h = __builtin_convertvector(load<Halves>(p), Words);
  const Words sign = (h & 0x8000u) << 16, rest = (h & 0x7fffu) << 13;
  const Floats scaled = (Floats)rest * 0x1p112f;
  const Words special = rest | 0x7f800000u;
  return (Floats)((rest >= 0x0f800000u ? special : (Words)scaled) | sign);
#endif
}

// acc[i] += dot(u[4i..4i+3], s[4i..4i+3]), u unsigned, s signed; exact in 32 bits.
inline Ints dot4(Ints acc, Bytes u, Bytes s) {
#if PHLOEM_AVX512
  return phloem::dot4(acc, u, s);
#else
  // A product of bytes fits 16 bits, the sum of two does not.
  const Shorts u_even = (Shorts)u & 0xff, u_odd = (Shorts)((Words)u >> 8) & 0xff;
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

}  // namespace phloem::native
