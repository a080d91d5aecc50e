// The arithmetic of linears: two panels of 16 outputs against a few rows of inputs.
//
// Owns the order in which an output is summed, which is the order of its panel's steps, whatever
// the number of rows in a tile. Two panels at a time, so that what is loaded of a row is used
// twice; as many rows as there are registers for their sums.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "linear.h"
#include "native.h"
#include "packed.h"

namespace phloem {

constexpr int PAIR = 2;
// Registers that a panel's outputs of one row take.
constexpr int PARTS = PANEL / native::WIDTH;
// Registers that there are for sums, the rows for which these are enough, and for how many sums
// there are registers for both panels at once: those with more rows meet one after the other.
constexpr int SUMS = 12;
constexpr int MAX_TILE = SUMS / std::max(PAIR, PARTS);
constexpr int SUMS_OF_PAIR = native::WIDTH == 16 ? SUMS : 8;

// So many panels of a tile, and what it asks memory for meanwhile: with each step `lines` cache
// lines, as far into other memory as the step is into its panel. They go to the second level of
// caches: the first has no room for more than what is computed with.
template <int N>
struct PanelsOf {
  static constexpr int COLUMNS = N * PARTS;  // registers

  const uint8_t* at[N];
  const uint8_t* ask[N] = {};
  int lines = 0;

  // Where column c of registers finds its lanes, of `lane_bytes` each, in what is kept for all 16
  // outputs of a panel `offset` bytes from its start.
  const uint8_t* column(int c, size_t offset, size_t lane_bytes) const {
    return at[c / PARTS] + offset + c % PARTS * native::WIDTH * lane_bytes;
  }

  PanelsOf<1> only(int panel) const { return {{at[panel]}, {ask[panel]}, lines}; }

  void prefetch(size_t step) const {
    for (int i = 0; i < lines; ++i)
#pragma GCC unroll 2
      for (int panel = 0; panel < N; ++panel)
        __builtin_prefetch(ask[panel] + step + i * VECTOR_BYTES, 0, 2);
  }
};

using Panels = PanelsOf<PAIR>;

// Four bytes for all lanes, and a sum, where they stand in the program. On AVX2 GCC would share the
// former between columns, for which there are no registers, and add up terms before sums: both end
// in memory.
inline native::Bytes quad_in_turn(const int8_t* four) {
#if PHLOEM_AVX2
  typedef int32_t Four __attribute__((may_alias));
  native::Bytes quad;
  asm volatile("vpbroadcastd %1, %0" : "=x"(quad) : "m"(*reinterpret_cast<const Four*>(four)));
  return quad;
#else
  return native::kept(native::splat4(four));
#endif
}

template <class V>
inline V in_turn(V sum) {
#if PHLOEM_AVX2
  asm volatile("" : "+x"(sum));
#endif
  return sum;
}

// A tile's sums, and the place for them: [rows, PAIR, PANEL].
template <int ROWS, int COLUMNS>
struct Sums {
  native::Floats of[ROWS][COLUMNS]{};

  void write(float* y) const {
#pragma GCC unroll 16
    for (int r = 0; r < ROWS; ++r)
#pragma GCC unroll 16
      for (int c = 0; c < COLUMNS; ++c)
        store(y + r * PAIR * PANEL + c * native::WIDTH, of[r][c]);
  }
};

template <int ROWS, int COLUMNS>
using Dots = native::Ints[ROWS][COLUMNS];

// y = w * x, added up input by input.
template <int ROWS, int N>
void run_f32(const PanelsOf<N>& panels, const LinearInput& x, int k, int row, float* y) {
  constexpr int COLUMNS = PanelsOf<N>::COLUMNS;
  const float* values = x.values + static_cast<size_t>(row) * k;
  Sums<ROWS, COLUMNS> sums;
  for (int i = 0; i < k; ++i) {
    const size_t step = i * F32_STEP;
    panels.prefetch(step);
    native::Floats w[COLUMNS];
#pragma GCC unroll 16
    for (int c = 0; c < COLUMNS; ++c)
      w[c] = native::kept(load<native::Floats>(panels.column(c, step, 4)));
#pragma GCC unroll 16
    for (int r = 0; r < ROWS; ++r) {
      const float input = values[static_cast<size_t>(r) * k + i];
      const native::Floats value = native::kept(native::splat(input));
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
template <int ROWS, int N, int COLUMNS>
inline void add_scaled(Sums<ROWS, COLUMNS>& sums, const native::Ints (&dots)[ROWS][COLUMNS],
                       const PanelsOf<N>& panels, size_t halves, const float* scales,
                       size_t stride) {
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
template <int ROWS, int N, int COLUMNS>
inline void add_dots(native::Ints (&dots)[ROWS][COLUMNS], const PanelsOf<N>& panels, size_t at,
                     const int8_t* inputs, size_t stride) {
  if constexpr (native::WIDTH == 16) {
    native::Weights w[COLUMNS];
#pragma GCC unroll 16
    for (int c = 0; c < COLUMNS; ++c)
      w[c] = native::weights(load<native::Bytes>(panels.column(c, at, 4)));
#pragma GCC unroll 16
    for (int r = 0; r < ROWS; ++r) {
      const native::Bytes q = quad_in_turn(inputs + r * stride);
#pragma GCC unroll 16
      for (int c = 0; c < COLUMNS; ++c) dots[r][c] = native::add_dots(dots[r][c], w[c], q);
    }
  } else {
    // Registers are short, and broadcasts cheap: each column meets the inputs anew.
#pragma GCC unroll 16
    for (int c = 0; c < COLUMNS; ++c) {
      const native::Weights w = native::weights(load<native::Bytes>(panels.column(c, at, 4)));
#pragma GCC unroll 16
      for (int r = 0; r < ROWS; ++r)
        dots[r][c] = in_turn(native::add_dots(dots[r][c], w, quad_in_turn(inputs + r * stride)));
    }
  }
}

// The same for inputs of 16 bits, which `stride` counts; w[c] are column c's signed bytes.
template <int ROWS, int COLUMNS>
inline void add_wide_dots(Dots<ROWS, COLUMNS>& dots, const native::Bytes (&w)[COLUMNS],
                          const int16_t* inputs, size_t stride) {
#pragma GCC unroll 2
  for (int odd = 0; odd < 2; ++odd) {
    native::Shorts pairs[COLUMNS];
#pragma GCC unroll 16
    for (int c = 0; c < COLUMNS; ++c)
      pairs[c] = odd ? native::odd_bytes(w[c]) : native::even_bytes(w[c]);
#pragma GCC unroll 16
    for (int r = 0; r < ROWS; ++r) {
      const int16_t* two = inputs + r * stride + 2 * odd;
      const auto q = (native::Shorts)quad_in_turn(reinterpret_cast<const int8_t*>(two));
#pragma GCC unroll 16
      for (int c = 0; c < COLUMNS; ++c)
        dots[r][c] = in_turn(native::dot2(dots[r][c], pairs[c], q));
    }
  }
}

// y = (d * scale) * dot, added up group by group.
template <bool WIDE, int ROWS, int N>
void run_q8(const PanelsOf<N>& panels, const LinearInput& input, int, int row, float* y) {
  constexpr int COLUMNS = PanelsOf<N>::COLUMNS;
  const QuantizedRows& x = input.quantized;
  const size_t groups = x.groups;
  Sums<ROWS, COLUMNS> sums;
  for (size_t g = 0; g < groups; ++g) {
    const size_t step = g * Q8_STEP, at = row * groups + g;
    panels.prefetch(step);
    Dots<ROWS, COLUMNS> dots;
#pragma GCC unroll 16
    for (int r = 0; r < ROWS; ++r)
#pragma GCC unroll 16
      for (int c = 0; c < COLUMNS; ++c)
        dots[r][c] = WIDE ? native::Ints{} : native::first_dots(x.offsets[at + r * groups]);
#pragma GCC unroll 8
    for (int v = 0; v < Q8_VECTORS; ++v) {
      const size_t first = at * GROUP + 4 * v, from = step + v * VECTOR_BYTES;
      if constexpr (WIDE) {
        native::Bytes w[COLUMNS];
#pragma GCC unroll 16
        for (int c = 0; c < COLUMNS; ++c)
          w[c] = load<native::Bytes>(panels.column(c, from, 4)) ^ 0x80;
        add_wide_dots(dots, w, x.wide + first, groups * GROUP);
      } else {
        add_dots(dots, panels, from, x.q + first, groups * GROUP);
      }
    }
    add_scaled(sums, dots, panels, step + Q8_VECTORS * VECTOR_BYTES, x.scales + at, groups);
  }
  sums.write(y);
}

// A vector of half bytes: 4 inputs meet the low ones, those half a group later the high ones.
template <int N>
inline void load_nibbles(const PanelsOf<N>& panels, size_t at,
                         native::Bytes (&low)[PanelsOf<N>::COLUMNS],
                         native::Bytes (&high)[PanelsOf<N>::COLUMNS]) {
#pragma GCC unroll 16
  for (int c = 0; c < PanelsOf<N>::COLUMNS; ++c) {
    const auto both = load<native::Words>(panels.column(c, at, 4));
    low[c] = (native::Bytes)both & 15;
    high[c] = (native::Bytes)(both >> 4) & 15;
  }
}

// sums += such a vector of the panels * the inputs of each row, `stride` bytes apart.
template <int ROWS, int N, int COLUMNS>
inline void add_nibbles(native::NibbleSums (&sums)[ROWS][COLUMNS], const PanelsOf<N>& panels,
                        size_t at, const int8_t* inputs, size_t stride) {
  native::Bytes low[COLUMNS], high[COLUMNS];
  load_nibbles(panels, at, low, high);
#pragma GCC unroll 16
  for (int r = 0; r < ROWS; ++r) {
    const int8_t* q = inputs + r * stride;
    const native::Bytes early = quad_in_turn(q);
#pragma GCC unroll 16
    for (int c = 0; c < COLUMNS; ++c)
      sums[r][c] = in_turn(native::add_nibbles(sums[r][c], low[c], early));
    const native::Bytes late = quad_in_turn(q + GROUP / 2);
#pragma GCC unroll 16
    for (int c = 0; c < COLUMNS; ++c)
      sums[r][c] = in_turn(native::add_nibbles(sums[r][c], high[c], late));
  }
}

// y = (d * scale) * dot, then + m * scaled sum, added up group by group.
template <bool WIDE, int ROWS, int N>
void run_q4(const PanelsOf<N>& panels, const LinearInput& input, int, int row, float* y) {
  constexpr int COLUMNS = PanelsOf<N>::COLUMNS;
  const QuantizedRows& x = input.quantized;
  const size_t groups = x.groups;
  Sums<ROWS, COLUMNS> sums;
  for (size_t g = 0; g < groups; ++g) {
    const size_t step = g * Q4_STEP, at = row * groups + g;
    panels.prefetch(step);
    Dots<ROWS, COLUMNS> dots{};
    if constexpr (WIDE) {
#pragma GCC unroll 4
      for (int v = 0; v < Q4_VECTORS; ++v) {
        const int16_t* inputs = x.wide + at * GROUP + 4 * v;
        native::Bytes low[COLUMNS], high[COLUMNS];
        load_nibbles(panels, step + v * VECTOR_BYTES, low, high);
        add_wide_dots(dots, low, inputs, groups * GROUP);
        add_wide_dots(dots, high, inputs + GROUP / 2, groups * GROUP);
      }
    } else {
      native::NibbleSums nibbles[ROWS][COLUMNS]{};
#pragma GCC unroll 4
      for (int v = 0; v < Q4_VECTORS; ++v)
        add_nibbles(nibbles, panels, step + v * VECTOR_BYTES, x.q + at * GROUP + 4 * v,
                    groups * GROUP);
#pragma GCC unroll 16
      for (int r = 0; r < ROWS; ++r)
#pragma GCC unroll 16
        for (int c = 0; c < COLUMNS; ++c) dots[r][c] = native::total(nibbles[r][c]);
    }
    const size_t halves = step + Q4_VECTORS * VECTOR_BYTES;
    add_scaled(sums, dots, panels, halves, x.scales + at, groups);
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
template <int ROWS, int N>
void run_i8(const PanelsOf<N>& panels, const LinearInput& input, int, int row, float* y) {
  constexpr int COLUMNS = PanelsOf<N>::COLUMNS;
  const QuantizedRows& x = input.quantized;
  const size_t k = static_cast<size_t>(x.groups) * GROUP;
  const int8_t* rows = x.q + row * k;
  Dots<ROWS, COLUMNS> dots;
#pragma GCC unroll 16
  for (int r = 0; r < ROWS; ++r)
#pragma GCC unroll 16
    for (int c = 0; c < COLUMNS; ++c) dots[r][c] = native::first_dots(x.offsets[row + r]);
  const auto add_groups = [&](auto asks) {
    for (size_t g = 0; g < static_cast<size_t>(x.groups); ++g) {
      const size_t step = g * I8_STEP;
      if constexpr (asks) panels.prefetch(step);
#pragma GCC unroll 8
      for (int v = 0; v < I8_VECTORS; ++v)
        add_dots(dots, panels, step + v * VECTOR_BYTES, rows + g * GROUP + 4 * v, k);
    }
  };
  // Most tiles of many ask for nothing, and then asking how many lines is a twentieth of a group.
  if (panels.lines > 0)
    add_groups(std::true_type{});
  else
    add_groups(std::false_type{});
  const size_t tail = x.groups * I8_STEP;
  Sums<ROWS, COLUMNS> sums;
#pragma GCC unroll 16
  for (int r = 0; r < ROWS; ++r) {
    const native::Floats scale = native::splat(x.scales[row + r]);
#pragma GCC unroll 16
    for (int c = 0; c < COLUMNS; ++c)
      sums.of[r][c] = load<native::Floats>(panels.column(c, tail, 4)) * scale *
                      native::to_float(dots[r][c]);
  }
  sums.write(y);
}

// Calls run(panels, y) for both panels at once, or for one after the other.
template <int ROWS, class Run>
inline void each_panel(const Panels& panels, float* y, Run run) {
  if constexpr (ROWS * Panels::COLUMNS <= SUMS_OF_PAIR)
    run(panels, y);
  else
    for (int panel = 0; panel < PAIR; ++panel) run(panels.only(panel), y + panel * PANEL);
}

// WIDE: of inputs of 16 bits.
template <int KIND, bool WIDE, int ROWS>
void tile(const Panels& panels, const LinearInput& x, int k, int row, float* y) {
  each_panel<ROWS>(panels, y, [&](const auto& some, float* to) {
    if constexpr (KIND == PHLOEM_F32) run_f32<ROWS>(some, x, k, row, to);
    if constexpr (KIND == PHLOEM_Q8) run_q8<WIDE, ROWS>(some, x, k, row, to);
    if constexpr (KIND == PHLOEM_Q4) run_q4<WIDE, ROWS>(some, x, k, row, to);
    if constexpr (KIND == PHLOEM_I8) run_i8<ROWS>(some, x, k, row, to);
  });
}

}  // namespace phloem
