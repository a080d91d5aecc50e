// Blocks of K and V, from the pages of a layer into the order that products take.
//
// Owns addresses and orders: K with its tokens in lanes, V with its dimensions. Positions that are
// not read are zeros or left alone.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "attention.h"
#include "attention_kernel.h"
#include "phloem.h"
#include "simd.h"

namespace phloem {

constexpr int BLOCK_VECTORS = BLOCK / LANES;

inline int vectors_of(int elements) { return (elements + LANES - 1) / LANES; }

// Where a slot is in memory, in elements from slot 0.
class Place {
 public:
  Place(int page_size, int64_t page, int64_t token)
      : page_(page), token_(token), page_size_(page_size) {
    if (page == page_size * token) {
      // Pages without room between them: each of their tokens may be called a page.
      page_ = token;
      page_size_ = 1;
    }
    while (shift_ < 31 && (1 << shift_) < page_size_) ++shift_;
    divides_ = (1 << shift_) != page_size_;
  }

  int64_t operator()(int32_t slot) const {
    if (page_size_ == 1) return slot * page_;
    const int32_t page = divides_ ? slot / page_size_ : slot >> shift_;
    return page * page_ + (slot - page * page_size_) * token_;
  }

  // From a slot to the next one; 0: that differs.
  int64_t stride() const { return page_size_ == 1 ? page_ : 0; }

 private:
  int64_t page_;
  int64_t token_;
  int32_t page_size_;
  int shift_ = 0;
  bool divides_ = false;
};

// Slots of consecutive tokens.
struct SlotRun {
  const int32_t* slots = nullptr;
  int count = 0;
  bool in_line = false;  // whether each is the one after the slot before it
};

// The elements and the scale of a slot, for one head.
template <class T>
class Slots {
 public:
  Slots(const phloem_kv_part& part, int page_size, int head)
      : elements_(static_cast<const T*>(part.elements) + head * part.head),
        scales_(part.scales == nullptr ? nullptr : part.scales + head * part.scale_head),
        place_(page_size, part.page, part.token),
        scale_place_(page_size, part.scale_page, part.scale_token) {}

  const T* elements(int32_t slot) const { return elements_ + place_(slot); }

  // From the elements of a run's slots to those of the next one; 0: that differs, or there are none.
  int64_t stride(SlotRun run) const {
    return run.in_line && run.count > 0 ? place_.stride() : 0;
  }

  // visit(t, elements or scale of the t-th slot).
  template <class Visit>
  void each_row(SlotRun run, Visit visit) const {
    each(run, elements_, place_, visit);
  }
  template <class Visit>
  void each_scale(SlotRun run, Visit visit) const {
    each(run, scales_, scale_place_, [visit](int t, const float* scale) { visit(t, *scale); });
  }

 private:
  // Where slots are in line an address is an addition.
  template <class E, class Visit>
  static void each(SlotRun run, const E* base, const Place& place, Visit visit) {
    const int64_t stride = place.stride();
    if (run.in_line && stride != 0) {
      const E* at = base + place(run.slots[0]);
      for (int t = 0; t < run.count; ++t, at += stride) visit(t, at);
    } else {
      for (int t = 0; t < run.count; ++t) visit(t, base + place(run.slots[t]));
    }
  }

  const T* elements_;
  const float* scales_;
  Place place_, scale_place_;
};

// Rows become columns: as many as a vector has lanes, quarter by quarter, where registers have
// fewer than 16.
template <class V>
inline void transpose_square(V* rows) {
  if constexpr (IS_TWICE<V>) {
    constexpr int HALF = sizeof(V) / sizeof(float) / 2;
    using H = decltype(V::low);
    H quarter[4][HALF];
    for (int i = 0; i < HALF; ++i) {
      quarter[0][i] = rows[i].low;
      quarter[1][i] = rows[HALF + i].low;
      quarter[2][i] = rows[i].high;
      quarter[3][i] = rows[HALF + i].high;
    }
    for (H* q : quarter) transpose_square(q);
    for (int i = 0; i < HALF; ++i) {
      rows[i] = {quarter[0][i], quarter[1][i]};
      rows[HALF + i] = {quarter[2][i], quarter[3][i]};
    }
  }
#if PHLOEM_AVX2
  else {
    __m256 pairs[8], quads[8];
    for (int i = 0; i < 8; i += 2) {
      pairs[i] = _mm256_unpacklo_ps((__m256)rows[i], (__m256)rows[i + 1]);
      pairs[i + 1] = _mm256_unpackhi_ps((__m256)rows[i], (__m256)rows[i + 1]);
    }
    for (int i = 0; i < 8; i += 4) {
      quads[i] = _mm256_shuffle_ps(pairs[i], pairs[i + 2], 0x44);
      quads[i + 1] = _mm256_shuffle_ps(pairs[i], pairs[i + 2], 0xee);
      quads[i + 2] = _mm256_shuffle_ps(pairs[i + 1], pairs[i + 3], 0x44);
      quads[i + 3] = _mm256_shuffle_ps(pairs[i + 1], pairs[i + 3], 0xee);
    }
    for (int i = 0; i < 4; ++i) {
      rows[i] = (V)_mm256_permute2f128_ps(quads[i], quads[i + 4], 0x20);
      rows[i + 4] = (V)_mm256_permute2f128_ps(quads[i], quads[i + 4], 0x31);
    }
  }
#else
  else {
    const V low[2] = {__builtin_shufflevector(rows[0], rows[1], 0, 4, 1, 5),
                      __builtin_shufflevector(rows[2], rows[3], 0, 4, 1, 5)};
    const V high[2] = {__builtin_shufflevector(rows[0], rows[1], 2, 6, 3, 7),
                       __builtin_shufflevector(rows[2], rows[3], 2, 6, 3, 7)};
    rows[0] = __builtin_shufflevector(low[0], low[1], 0, 1, 4, 5);
    rows[1] = __builtin_shufflevector(low[0], low[1], 2, 3, 6, 7);
    rows[2] = __builtin_shufflevector(high[0], high[1], 0, 1, 4, 5);
    rows[3] = __builtin_shufflevector(high[0], high[1], 2, 3, 6, 7);
  }
#endif
}

// Rows become columns: 16 x 16 units of 32 bits.
inline void transpose(f32x16 rows[LANES]) {
#if PHLOEM_AVX512
  // Masked, because GCC 12 warns of the unmasked forms.
  const __mmask16 all = -1;
  __m512 b[LANES];
  for (int i = 0; i < LANES; i += 4) {
    const __m512 x[4] = {(__m512)rows[i], (__m512)rows[i + 1], (__m512)rows[i + 2],
                         (__m512)rows[i + 3]};
    const __m512d low[2] = {(__m512d)_mm512_maskz_unpacklo_ps(all, x[0], x[1]),
                            (__m512d)_mm512_maskz_unpacklo_ps(all, x[2], x[3])};
    const __m512d high[2] = {(__m512d)_mm512_maskz_unpackhi_ps(all, x[0], x[1]),
                             (__m512d)_mm512_maskz_unpackhi_ps(all, x[2], x[3])};
    b[i] = (__m512)_mm512_maskz_unpacklo_pd(0xff, low[0], low[1]);
    b[i + 1] = (__m512)_mm512_maskz_unpackhi_pd(0xff, low[0], low[1]);
    b[i + 2] = (__m512)_mm512_maskz_unpacklo_pd(0xff, high[0], high[1]);
    b[i + 3] = (__m512)_mm512_maskz_unpackhi_pd(0xff, high[0], high[1]);
  }
  for (int j = 0; j < 4; ++j) {
    const __m512 even[2] = {_mm512_maskz_shuffle_f32x4(all, b[j], b[4 + j], 0x88),
                            _mm512_maskz_shuffle_f32x4(all, b[8 + j], b[12 + j], 0x88)};
    const __m512 odd[2] = {_mm512_maskz_shuffle_f32x4(all, b[j], b[4 + j], 0xdd),
                           _mm512_maskz_shuffle_f32x4(all, b[8 + j], b[12 + j], 0xdd)};
    rows[j] = (f32x16)_mm512_maskz_shuffle_f32x4(all, even[0], even[1], 0x88);
    rows[4 + j] = (f32x16)_mm512_maskz_shuffle_f32x4(all, odd[0], odd[1], 0x88);
    rows[8 + j] = (f32x16)_mm512_maskz_shuffle_f32x4(all, even[0], even[1], 0xdd);
    rows[12 + j] = (f32x16)_mm512_maskz_shuffle_f32x4(all, odd[0], odd[1], 0xdd);
  }
#else
  transpose_square<f32x16>(rows);
#endif
}

// Columns become quads: out[4 d + t] = row t's byte d.
inline void put_quads(const int8_t* const rows[4], int8_t* out) {
#if PHLOEM_AVX512 || PHLOEM_AVX2
  __m128i x[4];
  for (int t = 0; t < 4; ++t) x[t] = _mm_loadu_si128((const __m128i*)rows[t]);
  const __m128i low[2] = {_mm_unpacklo_epi8(x[0], x[1]), _mm_unpacklo_epi8(x[2], x[3])};
  const __m128i high[2] = {_mm_unpackhi_epi8(x[0], x[1]), _mm_unpackhi_epi8(x[2], x[3])};
  __m128i* to = (__m128i*)out;
  _mm_store_si128(to, _mm_unpacklo_epi16(low[0], low[1]));
  _mm_store_si128(to + 1, _mm_unpackhi_epi16(low[0], low[1]));
  _mm_store_si128(to + 2, _mm_unpacklo_epi16(high[0], high[1]));
  _mm_store_si128(to + 3, _mm_unpackhi_epi16(high[0], high[1]));
#else
  for (int d = 0; d < LANES; ++d)
    for (int t = 0; t < 4; ++t) out[4 * d + t] = rows[t][d];
#endif
}

inline f32x16 widen(const float* p) { return load(p); }
inline f32x16 widen(const uint16_t* p) { return load_bf16(p); }
// Sixty-four bytes stay as they are, but for KEY_FLIP.
inline f32x16 widen(const int8_t* p) { return (f32x16)(load<u8x64>(p) ^ KEY_FLIP); }

// Elements that a vector of units takes up in memory.
template <class T>
constexpr int VECTOR_ELEMENTS = sizeof(T) == 1 ? 4 * LANES : LANES;

// A row's elements from p on, of which `left` are its own; the others are 0.
template <class T>
[[gnu::always_inline]] inline f32x16 widen_some(const T* p, int left) {
  constexpr int N = VECTOR_ELEMENTS<T>;
  if (left >= N) return widen(p);
  alignas(64) T padded[N] = {};
  int i = 0;
  for (; i + LANES <= left; i += LANES) std::memcpy(padded + i, p + i, LANES * sizeof(T));
  for (; i < left; ++i) padded[i] = p[i];
  return widen(padded);
}

// Asks for a row of `dim` elements ahead of its use.
template <class T>
inline void prefetch(const T* p, int dim) {
  constexpr int LINE = 64 / sizeof(T);
  for (int i = 0; i < dim; i += LINE) __builtin_prefetch(p + i, 0, 2);
}

// A block to be packed, and the slots of the one that this thread will probably pack after it, or
// none. That may be another head's, whose keys and values are so many elements further on.
struct BlockSlots : SlotRun {
  SlotRun next;
  int64_t next_keys = 0, next_values = 0;
};

// Some units of 16 tokens, each BLOCK_VECTORS after the one before it; returns where the next go.
// Of pairs, the even ones of all the units come before the odd ones.
template <class T>
[[gnu::always_inline]] inline f32x16* put_units(f32x16* to, const f32x16 x[LANES], int units) {
  if constexpr (sizeof(T) == 1 && PAIRS) {
    f32x16* odd = to + units * BLOCK_VECTORS;
    for (int i = 0; i < units; ++i) {
      to[i * BLOCK_VECTORS] = (f32x16)even_bytes((u8x64)x[i]);
      odd[i * BLOCK_VECTORS] = (f32x16)odd_bytes((u8x64)x[i]);
    }
    return odd + units * BLOCK_VECTORS;
  } else {
    for (int i = 0; i < units; ++i) to[i * BLOCK_VECTORS] = x[i];
    return to + units * BLOCK_VECTORS;
  }
}

// out[unit * BLOCK_VECTORS + v]: the unit of tokens 16 v to 16 v + 15; what there is behind the last
// token is no matter.
template <class T>
void pack_keys(f32x16* out, const Slots<T>& keys, int dim, const BlockSlots& block) {
  constexpr int N = VECTOR_ELEMENTS<T>;
  constexpr int UNIT = N / LANES;
  const int units = (dim + UNIT - 1) / UNIT;
  for (int first = 0; first < block.count; first += LANES) {
    const T* rows[LANES];
    for (int t = 0; t < LANES; ++t) {
      rows[t] = keys.elements(block.slots[std::min(first + t, block.count - 1)]);
      if (first + t < block.next.count)
        prefetch(keys.elements(block.next.slots[first + t]) + block.next_keys, dim);
    }
    f32x16* to = out + first / LANES;
    for (int d = 0; d < dim; d += N) {
      f32x16 x[LANES];
      if (dim - d >= N)
        for (int t = 0; t < LANES; ++t) x[t] = widen(rows[t] + d);
      else
        for (int t = 0; t < LANES; ++t) x[t] = widen_some(rows[t] + d, dim - d);
      transpose(x);
      const int left = std::min(LANES, units - d / UNIT);
      to = left == LANES ? put_units<T>(to, x, LANES) : put_units<T>(to, x, left);
    }
  }
}

// out[token * vectors + v]: dimensions 16 v to 16 v + 15.
template <class T>
void pack_values(f32x16* out, const Slots<T>& values, int dim, const BlockSlots& block) {
  for (int t = 0; t < block.count; ++t) {
    const T* row = values.elements(block.slots[t]);
    if (t < block.next.count)
      prefetch(values.elements(block.next.slots[t]) + block.next_values, dim);
    for (int d = 0; d < dim; d += LANES) *out++ = widen_some(row + d, dim - d);
  }
}

// Two rows' bytes of 16 dimensions as pairs.
inline i16x32 row_pairs(const int8_t* a, const int8_t* b) {
#if PHLOEM_AVX2
  const __m128i x = _mm_loadu_si128((const __m128i*)a), y = _mm_loadu_si128((const __m128i*)b);
  return {(native::Shorts)_mm256_cvtepi8_epi16(_mm_unpacklo_epi8(x, y)),
          (native::Shorts)_mm256_cvtepi8_epi16(_mm_unpackhi_epi8(x, y))};
#else
  int16_t pairs[2 * LANES];
  for (int d = 0; d < LANES; ++d) {
    pairs[2 * d] = a[d];
    pairs[2 * d + 1] = b[d];
  }
  return load<i16x32>(pairs);
#endif
}

// 16 dimensions of four tokens: a vector of quads, or one of the first two tokens' pairs and, `row`
// vectors after it, one of the others'.
inline void put_values(f32x16* to, int row, const int8_t* const tokens[4]) {
  if constexpr (PAIRS) {
    store(to, row_pairs(tokens[0], tokens[1]));
    store(to + row, row_pairs(tokens[2], tokens[3]));
  } else {
    put_quads(tokens, reinterpret_cast<int8_t*>(to));
  }
}

// out[unit * vectors + v]: dimensions 16 v to 16 v + 15 of some tokens each.
inline void pack_values(f32x16* out, const Slots<int8_t>& values, int dim,
                        const BlockSlots& block) {
  alignas(64) static constexpr int8_t zeros[LANES] = {};
  const int vectors = vectors_of(dim);
  for (int first = 0; first < block.count; first += 4) {
    const int8_t* rows[4];
    const int tokens = std::min(4, block.count - first);
    for (int t = 0; t < tokens; ++t) {
      rows[t] = values.elements(block.slots[first + t]);
      if (first + t < block.next.count)
        prefetch(values.elements(block.next.slots[first + t]) + block.next_values, dim);
    }
    for (int d = 0; d < dim; d += LANES) {
      const int8_t* parts[4];
      int8_t padded[4][LANES] = {};
      for (int t = 0; t < 4; ++t) {
        parts[t] = t < tokens ? rows[t] + d : zeros;
        if (t >= tokens || dim - d >= LANES) continue;
        std::memcpy(padded[t], parts[t], dim - d);
        parts[t] = padded[t];
      }
      put_values(out + d / LANES, vectors, parts);
    }
    out += 4 / UNIT_BYTES * vectors;
  }
}

inline void gather_scales(float* out, const Slots<int8_t>& slots, const BlockSlots& block) {
  slots.each_scale(block, [out](int t, float scale) { out[t] = scale; });
  for (int t = block.count; t % LANES != 0; ++t) out[t] = 0;
}

}  // namespace phloem
