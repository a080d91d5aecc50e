// The arithmetic of attention on what lies packed in a thread's scratch: products of a tile of
// queries with a block, and the exponential.
//
// A product's operands are made of 32-bit units along the summed dimension, one float, four bytes
// or two of them widened: rows of units on the left (queries or probabilities), vectors of 16
// columns on the right (keys or values). Every element is one chain over ascending units, so that
// its bits do not depend on the tile that it falls into.
#pragma once

#include <algorithm>

#include "simd.h"

namespace phloem {

// As many accumulators as there are registers for, where these have eight lanes or more.
constexpr int TILE_ROWS = 6;
constexpr int TILE_VECTORS = PHLOEM_AVX512 ? 4 : 1;

// Whether packed bytes are pairs of 16 bits: one multiplication each, where four bytes take two and
// more around them, unless the machine has one for these.
constexpr bool PAIRS = !PHLOEM_AVX512;
constexpr int UNIT_BYTES = PAIRS ? 2 : 4;

// What keys have flipped where they are products' unsigned side: they are keys + 128 then.
constexpr uint8_t KEY_FLIP = PAIRS ? 0 : 0x80;

struct FloatProduct {
  using Sum = f32x16;
  using Right = f32x16;
  static Sum add(Sum sum, int32_t left, Right right) {
    float x;
    std::memcpy(&x, &left, sizeof x);
    return fma(splat(x), right, sum);
  }
};

// Signed bytes on both sides, queries and keys; see KEY_FLIP.
struct KeyProduct {
  using Sum = i32x16;
  using Right = u8x64;
  static Sum add(Sum sum, int32_t left, Right right) {
    const u8x64 query = (u8x64)splat(left);
    if constexpr (KEY_FLIP == 0)
      return signed_dot4(sum, right, query);
    else
      return dot4(sum, right, query);
  }
};

// Unsigned bytes on the left, signed ones on the right: probabilities and values.
struct ValueProduct {
  using Sum = i32x16;
  using Right = u8x64;
  static Sum add(Sum sum, int32_t left, Right right) {
    return dot4(sum, (u8x64)splat(left), right);
  }
};

// Pairs of either.
struct PairProduct {
  using Sum = i32x16;
  using Right = i16x32;
  static Sum add(Sum sum, int32_t left, Right right) {
    return dot2(sum, (i16x32)splat(left), right);
  }
};

// Rows of units, `stride` units apart.
struct Left {
  const int32_t* units;
  int stride;
};

// Vectors of columns for each unit, `stride` vectors apart.
struct Right {
  const f32x16* vectors;
  int stride;
};

template <class Product, int ROWS, int VECTORS, class Emit>
inline void product_tile(Left a, Right b, int units, int row, int vector, Emit emit) {
  typename Product::Sum sums[ROWS][VECTORS] = {};
  const int32_t* left = a.units + static_cast<int64_t>(row) * a.stride;
  const f32x16* right = b.vectors + vector;
  for (int i = 0; i < units; ++i, right += b.stride) {
    typename Product::Right columns[VECTORS];
    for (int v = 0; v < VECTORS; ++v) {
      columns[v] = load<typename Product::Right>(right + v);
      if constexpr (IS_TWICE<typename Product::Right>)
        columns[v] = {native::kept(columns[v].low), native::kept(columns[v].high)};
    }
    for (int r = 0; r < ROWS; ++r)
      for (int v = 0; v < VECTORS; ++v)
        sums[r][v] = Product::add(sums[r][v], left[r * a.stride + i], columns[v]);
  }
  // Unrolled, or the sums would live in memory.
#pragma GCC unroll 8
  for (int r = 0; r < ROWS; ++r)
#pragma GCC unroll 8
    for (int v = 0; v < VECTORS; ++v) emit(row + r, vector + v, sums[r][v]);
}

template <class Product, int ROWS, int VECTORS, class Emit>
inline void product_last_rows(Left a, Right b, int units, int rows, int row, int vector,
                              Emit emit) {
  if (rows == ROWS) return product_tile<Product, ROWS, VECTORS>(a, b, units, row, vector, emit);
  if constexpr (ROWS > 1)
    product_last_rows<Product, ROWS - 1, VECTORS>(a, b, units, rows, row, vector, emit);
}

template <class Product, int VECTORS, class Emit>
void product_rows(Left a, Right b, int units, int rows, int vector, Emit emit) {
  int row = 0;
  for (; row + TILE_ROWS <= rows; row += TILE_ROWS)
    product_tile<Product, TILE_ROWS, VECTORS>(a, b, units, row, vector, emit);
  if (row < rows)
    product_last_rows<Product, TILE_ROWS - 1, VECTORS>(a, b, units, rows - row, row, vector, emit);
}

template <class Product, int VECTORS, class Emit>
void product_last_vectors(Left a, Right b, int units, int rows, int vectors, int vector,
                          Emit emit) {
  if constexpr (VECTORS > 0) {
    if (vectors == VECTORS)
      return product_rows<Product, VECTORS>(a, b, units, rows, vector, emit);
    product_last_vectors<Product, VECTORS - 1>(a, b, units, rows, vectors, vector, emit);
  }
}

// emit(row, vector, sum over the units of a[row] * b[vector]) for all rows and vectors.
template <class Product, class Emit>
void product(Left a, Right b, int units, int rows, int vectors, Emit emit) {
  int vector = 0;
  for (; vector + TILE_VECTORS <= vectors; vector += TILE_VECTORS)
    product_rows<Product, TILE_VECTORS>(a, b, units, rows, vector, emit);
  product_last_vectors<Product, TILE_VECTORS - 1>(a, b, units, rows, vectors - vector, vector,
                                                  emit);
}

// 2^x within 2 ulp for x <= 0, exactly 1 at 0; 2^-125 for all below -125. NaN stays NaN. A minimax
// polynomial of degree 5 on [-1/2, 1/2].
[[gnu::always_inline]] inline f32x16 exp2_to_1(f32x16 x) {
  const f32x16 low = splat(-125.0f);
#if PHLOEM_AVX512
  // Masked, because GCC 12 warns of the unmasked forms. Where one is NaN the second comes out.
  const __mmask16 all = -1;
  const f32x16 clamped = (f32x16)_mm512_maskz_max_ps(all, (__m512)low, (__m512)x);
  const f32x16 n = (f32x16)_mm512_maskz_roundscale_ps(all, (__m512)clamped, 0);
#else
  const f32x16 clamped = select(low > x, low, x);
  const i32x16 integer = round_to_int(clamped);
  const f32x16 n = to_float(integer);
#endif
  const f32x16 r = clamped - n;
  f32x16 p = splat(1.326472731e-3f);
  p = fma(p, r, splat(9.671512991e-3f));
  p = fma(p, r, splat(5.550733581e-2f));
  p = fma(p, r, splat(2.402224243e-1f));
  p = fma(p, r, splat(6.931470037e-1f));
  p = fma(p, r, splat(1.0f));
#if PHLOEM_AVX512
  return (f32x16)_mm512_maskz_scalef_ps(all, (__m512)p, (__m512)n);
#else
  return p * (f32x16)((integer + 127) << 23);
#endif
}

}  // namespace phloem
