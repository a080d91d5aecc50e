// The arithmetic of linears: two panels of 16 outputs against a few rows of inputs.
//
// Owns the order in which an output is summed, which is the order of its panel's steps, whatever
// the number of rows in a tile. Two panels at a time, so that what is loaded of a row is used twice;
// as many rows as there are registers for their sums.
#pragma once

#include <cstddef>
#include <cstdint>

#include "linear.h"
#include "packed.h"
#include "simd.h"

namespace phloem {

#if PHLOEM_AVX512
constexpr int MAX_TILE = 6;
#else
constexpr int MAX_TILE = 2;
#endif
constexpr int PAIR = 2;

// The panels of a tile, and what it asks memory for meanwhile: with each step `lines` cache lines,
// `ahead` bytes further on in both. They go to the second level of caches: the first has no room for
// more than what is computed with.
struct Panels {
  const uint8_t* first;
  const uint8_t* second;
  size_t ahead;
  int lines;

  void prefetch(size_t step) const {
    for (int i = 0; i < lines; ++i) {
      __builtin_prefetch(first + step + ahead + i * VECTOR_BYTES, 0, 2);
      __builtin_prefetch(second + step + ahead + i * VECTOR_BYTES, 0, 2);
    }
  }
};

// Keeps what is used twice in a register: GCC would load it with each use.
template <class V>
inline V kept(V v) {
#if PHLOEM_AVX512
  asm("" : "+v"(v));
#endif
  return v;
}

// A tile's sums, and where it writes them: [rows][PAIR].
template <int ROWS>
struct Sums {
  f32x16 of[ROWS][PAIR]{};

  void write(f32x16 (*y)[PAIR]) const {
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; ++r) {
      y[r][0] = of[r][0];
      y[r][1] = of[r][1];
    }
  }
};

// y = w * x, added up input by input.
template <int ROWS>
void tile_f32(const Panels& panels, const LinearInput& x, int k, int row, f32x16 (*y)[PAIR]) {
  const float* values = x.values + static_cast<size_t>(row) * k;
  Sums<ROWS> sums;
  for (int i = 0; i < k; ++i) {
    const size_t step = i * F32_STEP;
    panels.prefetch(step);
    const f32x16 w0 = load(reinterpret_cast<const float*>(panels.first + step));
    const f32x16 w1 = load(reinterpret_cast<const float*>(panels.second + step));
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; ++r) {
      const f32x16 value = kept(splat(values[static_cast<size_t>(r) * k + i]));
      sums.of[r][0] = fma(value, w0, sums.of[r][0]);
      sums.of[r][1] = fma(value, w1, sums.of[r][1]);
    }
  }
  sums.write(y);
}

inline f32x16 load_half(const uint8_t* p) { return load_f16(reinterpret_cast<const uint16_t*>(p)); }

// y = (d * scale) * dot, added up group by group.
template <int ROWS>
void tile_q8(const Panels& panels, const LinearInput& input, int, int row, f32x16 (*y)[PAIR]) {
  const QuantizedRows& x = input.quantized;
  const size_t groups = x.groups;
  Sums<ROWS> sums;
  for (size_t g = 0; g < groups; ++g) {
    const size_t step = g * Q8_STEP, at = row * groups + g;
    panels.prefetch(step);
    i32x16 dots[ROWS][PAIR];
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; ++r) dots[r][0] = dots[r][1] = splat(x.offsets[at + r * groups]);
#pragma GCC unroll 8
    for (int v = 0; v < Q8_VECTORS; ++v) {
      const u8x64 w0 = load<u8x64>(panels.first + step + v * VECTOR_BYTES);
      const u8x64 w1 = load<u8x64>(panels.second + step + v * VECTOR_BYTES);
#pragma GCC unroll 8
      for (int r = 0; r < ROWS; ++r) {
        const u8x64 q = kept(splat4(x.q + (at + r * groups) * GROUP + 4 * v));
        dots[r][0] = dot4(dots[r][0], w0, q);
        dots[r][1] = dot4(dots[r][1], w1, q);
      }
    }
    const size_t scales = step + Q8_VECTORS * VECTOR_BYTES;
    const f32x16 d0 = load_half(panels.first + scales), d1 = load_half(panels.second + scales);
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; ++r) {
      const f32x16 scale = splat(x.scales[at + r * groups]);
      sums.of[r][0] = fma(d0 * scale, to_float(dots[r][0]), sums.of[r][0]);
      sums.of[r][1] = fma(d1 * scale, to_float(dots[r][1]), sums.of[r][1]);
    }
  }
  sums.write(y);
}

inline u8x64 low_halves(u8x64 v) { return v & 15; }
inline u8x64 high_halves(u8x64 v) { return (u8x64)((u32x16)v >> 4) & 15; }

// y = (d * scale) * dot, then + m * scaled sum, added up group by group.
template <int ROWS>
void tile_q4(const Panels& panels, const LinearInput& input, int, int row, f32x16 (*y)[PAIR]) {
  const QuantizedRows& x = input.quantized;
  const size_t groups = x.groups;
  Sums<ROWS> sums;
  for (size_t g = 0; g < groups; ++g) {
    const size_t step = g * Q4_STEP, at = row * groups + g;
    panels.prefetch(step);
    i32x16 dots[ROWS][PAIR]{};
#pragma GCC unroll 4
    for (int v = 0; v < Q4_VECTORS; ++v) {
      const u8x64 w0 = load<u8x64>(panels.first + step + v * VECTOR_BYTES);
      const u8x64 w1 = load<u8x64>(panels.second + step + v * VECTOR_BYTES);
      const u8x64 low0 = low_halves(w0), high0 = high_halves(w0);
      const u8x64 low1 = low_halves(w1), high1 = high_halves(w1);
#pragma GCC unroll 8
      for (int r = 0; r < ROWS; ++r) {
        const int8_t* q = x.q + (at + r * groups) * GROUP + 4 * v;
        const u8x64 early = kept(splat4(q)), late = kept(splat4(q + GROUP / 2));
        dots[r][0] = dot4(dot4(dots[r][0], low0, early), high0, late);
        dots[r][1] = dot4(dot4(dots[r][1], low1, early), high1, late);
      }
    }
    const size_t scales = step + Q4_VECTORS * VECTOR_BYTES, minima = scales + PANEL * 2;
    const f32x16 d0 = load_half(panels.first + scales), d1 = load_half(panels.second + scales);
    const f32x16 m0 = load_half(panels.first + minima), m1 = load_half(panels.second + minima);
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; ++r) {
      const f32x16 scale = splat(x.scales[at + r * groups]);
      const f32x16 scaled_sum = splat(x.scaled_sums[at + r * groups]);
      sums.of[r][0] = fma(d0 * scale, to_float(dots[r][0]), sums.of[r][0]);
      sums.of[r][1] = fma(d1 * scale, to_float(dots[r][1]), sums.of[r][1]);
      sums.of[r][0] = fma(m0, scaled_sum, sums.of[r][0]);
      sums.of[r][1] = fma(m1, scaled_sum, sums.of[r][1]);
    }
  }
  sums.write(y);
}

}  // namespace phloem
