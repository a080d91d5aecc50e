// The arithmetic of linears: two panels of 16 outputs against a few rows of inputs.
//
// Owns the order in which an output is summed, which is the order of its panel's steps, whatever
// the number of rows in a tile. Two panels at a time, so that what is loaded of a row is used
// twice; as many rows as there are registers for their sums.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "linear.h"
#include "native.h"
#include "packed.h"

namespace phloem {

constexpr int PAIR = 2;
// Registers that a row of a tile takes for its sums.
constexpr int PARTS = PANEL / native::WIDTH, COLUMNS = PAIR * PARTS;
constexpr int MAX_TILE = native::WIDTH == 16 ? 6 : native::WIDTH == 8 ? 2 : 1;

// The panels of a tile, and what it asks memory for meanwhile: with each step `lines` cache lines,
// as far into other memory as the step is into its panel. They go to the second level of caches:
// the first has no room for more than what is computed with.
struct Panels {
  const uint8_t* first;
  const uint8_t* second;
  const uint8_t* ask_first = nullptr;
  const uint8_t* ask_second = nullptr;
  int lines = 0;

  // Where column c of registers finds its lanes, of `lane_bytes` each, in what is kept for all 16
  // outputs of a panel `at` bytes from its start.
  const uint8_t* column(int c, size_t at, size_t lane_bytes) const {
    return (c < PARTS ? first : second) + at + c % PARTS * native::WIDTH * lane_bytes;
  }

  void prefetch(size_t step) const {
    for (int i = 0; i < lines; ++i) {
      __builtin_prefetch(ask_first + step + i * VECTOR_BYTES, 0, 2);
      __builtin_prefetch(ask_second + step + i * VECTOR_BYTES, 0, 2);
    }
  }
};

// Keeps what is used more than once in a register: GCC would load it with each use.
template <class V>
inline V kept(V v) {
#if PHLOEM_AVX512
  asm("" : "+v"(v));
#endif
  return v;
}

// A tile's sums, and the place for them: [rows, PAIR, PANEL].
template <int ROWS>
struct Sums {
  native::Floats of[ROWS][COLUMNS]{};

  void write(float* y) const {
#pragma GCC unroll 16
    for (int r = 0; r < ROWS; ++r)
#pragma GCC unroll 16
      for (int c = 0; c < COLUMNS; ++c) store(y + (r * COLUMNS + c) * native::WIDTH, of[r][c]);
  }
};

// y = w * x, added up input by input.
template <int ROWS>
void tile_f32(const Panels& panels, const LinearInput& x, int k, int row, float* y) {
  const float* values = x.values + static_cast<size_t>(row) * k;
  Sums<ROWS> sums;
  for (int i = 0; i < k; ++i) {
    const size_t step = i * F32_STEP;
    panels.prefetch(step);
    native::Floats w[COLUMNS];
#pragma GCC unroll 16
    for (int c = 0; c < COLUMNS; ++c) w[c] = load<native::Floats>(panels.column(c, step, 4));
#pragma GCC unroll 16
    for (int r = 0; r < ROWS; ++r) {
      const native::Floats value = kept(native::splat(values[static_cast<size_t>(r) * k + i]));
#pragma GCC unroll 16
      for (int c = 0; c < COLUMNS; ++c) sums.of[r][c] = native::fma(value, w[c], sums.of[r][c]);
    }
  }
  sums.write(y);
}

inline native::Floats load_halves(const uint8_t* p) {
  return native::load_f16(reinterpret_cast<const uint16_t*>(p));
}

// A group's part of the sums, of dots that are done: sums += (d * scale) * dot.
template <int ROWS>
inline void add_scaled(Sums<ROWS>& sums, const native::Ints (&dots)[ROWS][COLUMNS],
                       const Panels& panels, size_t halves, const float* scales, size_t stride) {
  native::Floats d[COLUMNS];
#pragma GCC unroll 16
  for (int c = 0; c < COLUMNS; ++c) d[c] = load_halves(panels.column(c, halves, 2));
#pragma GCC unroll 16
  for (int r = 0; r < ROWS; ++r) {
    const native::Floats scale = native::splat(scales[r * stride]);
#pragma GCC unroll 16
    for (int c = 0; c < COLUMNS; ++c)
      sums.of[r][c] = native::fma(d[c] * scale, native::to_float(dots[r][c]), sums.of[r][c]);
  }
}

// dots += a vector of bytes of the panels * 4 inputs of each row, `stride` bytes apart.
template <int ROWS>
inline void add_dots(native::Ints (&dots)[ROWS][COLUMNS], const Panels& panels, size_t at,
                     const int8_t* inputs, size_t stride) {
  native::Bytes w[COLUMNS];
#pragma GCC unroll 16
  for (int c = 0; c < COLUMNS; ++c) w[c] = load<native::Bytes>(panels.column(c, at, 4));
#pragma GCC unroll 16
  for (int r = 0; r < ROWS; ++r) {
    const native::Bytes q = kept(native::splat4(inputs + r * stride));
#pragma GCC unroll 16
    for (int c = 0; c < COLUMNS; ++c) dots[r][c] = native::dot4(dots[r][c], w[c], q);
  }
}

// y = (d * scale) * dot, added up group by group.
template <int ROWS>
void tile_q8(const Panels& panels, const LinearInput& input, int, int row, float* y) {
  const QuantizedRows& x = input.quantized;
  const size_t groups = x.groups;
  Sums<ROWS> sums;
  for (size_t g = 0; g < groups; ++g) {
    const size_t step = g * Q8_STEP, at = row * groups + g;
    panels.prefetch(step);
    native::Ints dots[ROWS][COLUMNS];
#pragma GCC unroll 16
    for (int r = 0; r < ROWS; ++r)
#pragma GCC unroll 16
      for (int c = 0; c < COLUMNS; ++c) dots[r][c] = native::splat(x.offsets[at + r * groups]);
#pragma GCC unroll 8
    for (int v = 0; v < Q8_VECTORS; ++v)
      add_dots<ROWS>(dots, panels, step + v * VECTOR_BYTES, x.q + at * GROUP + 4 * v,
                     groups * GROUP);
    add_scaled<ROWS>(sums, dots, panels, step + Q8_VECTORS * VECTOR_BYTES, x.scales + at, groups);
  }
  sums.write(y);
}

// y = (d * scale) * dot, then + m * scaled sum, added up group by group.
template <int ROWS>
void tile_q4(const Panels& panels, const LinearInput& input, int, int row, float* y) {
  const QuantizedRows& x = input.quantized;
  const size_t groups = x.groups;
  Sums<ROWS> sums;
  for (size_t g = 0; g < groups; ++g) {
    const size_t step = g * Q4_STEP, at = row * groups + g;
    panels.prefetch(step);
    native::Ints dots[ROWS][COLUMNS]{};
#pragma GCC unroll 4
    for (int v = 0; v < Q4_VECTORS; ++v) {
      native::Bytes low[COLUMNS], high[COLUMNS];
#pragma GCC unroll 16
      for (int c = 0; c < COLUMNS; ++c) {
        const auto both = load<native::Words>(panels.column(c, step + v * VECTOR_BYTES, 4));
        low[c] = (native::Bytes)both & 15;
        high[c] = (native::Bytes)(both >> 4) & 15;
      }
#pragma GCC unroll 16
      for (int r = 0; r < ROWS; ++r) {
        const int8_t* q = x.q + (at + r * groups) * GROUP + 4 * v;
        const native::Bytes early = kept(native::splat4(q));
        const native::Bytes late = kept(native::splat4(q + GROUP / 2));
#pragma GCC unroll 16
        for (int c = 0; c < COLUMNS; ++c)
          dots[r][c] = native::dot4(native::dot4(dots[r][c], low[c], early), high[c], late);
      }
    }
    const size_t halves = step + Q4_VECTORS * VECTOR_BYTES;
    add_scaled<ROWS>(sums, dots, panels, halves, x.scales + at, groups);
#pragma GCC unroll 16
    for (int c = 0; c < COLUMNS; ++c) {
      const native::Floats m = load_halves(panels.column(c, halves + PANEL * 2, 2));
#pragma GCC unroll 16
      for (int r = 0; r < ROWS; ++r)
        sums.of[r][c] =
            native::fma(m, native::splat(x.scaled_sums[at + r * groups]), sums.of[r][c]);
    }
  }
  sums.write(y);
}

// y = (d * scale) * dot.
template <int ROWS>
void tile_i8(const Panels& panels, const LinearInput& input, int, int row, float* y) {
  const QuantizedRows& x = input.quantized;
  const size_t bytes = static_cast<size_t>(x.groups) * GROUP;  // of a row
  const int8_t* rows = x.q + row * bytes;
  native::Ints dots[ROWS][COLUMNS];
#pragma GCC unroll 16
  for (int r = 0; r < ROWS; ++r)
#pragma GCC unroll 16
    for (int c = 0; c < COLUMNS; ++c) dots[r][c] = native::splat(x.offsets[row + r]);
  const auto add_groups = [&](auto asks) {
    for (size_t g = 0; g < static_cast<size_t>(x.groups); ++g) {
      const size_t step = g * I8_STEP;
      if constexpr (asks) panels.prefetch(step);
#pragma GCC unroll 8
      for (int v = 0; v < I8_VECTORS; ++v)
        add_dots<ROWS>(dots, panels, step + v * VECTOR_BYTES, rows + g * GROUP + 4 * v, bytes);
    }
  };
  // Most tiles of many ask for nothing, and then asking how many lines is a twentieth of a group.
  if (panels.lines > 0)
    add_groups(std::true_type{});
  else
    add_groups(std::false_type{});
  const size_t tail = x.groups * I8_STEP;
#pragma GCC unroll 16
  for (int r = 0; r < ROWS; ++r) {
    const native::Floats scale = native::splat(x.scales[row + r]);
#pragma GCC unroll 16
    for (int c = 0; c < COLUMNS; ++c)
      store(y + (r * COLUMNS + c) * native::WIDTH,
            load<native::Floats>(panels.column(c, tail, 4)) * scale *
                native::to_float(dots[r][c]));
  }
}

}  // namespace phloem
