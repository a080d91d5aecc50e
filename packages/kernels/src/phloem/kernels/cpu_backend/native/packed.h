// How a weight [n, k] is packed: panels of 16 outputs, one for each lane of a vector.
//
// A panel reads like a tape, from front to back, whatever is computed with it, and panels follow
// each other without gaps: a weight streams from memory as one sequence. Outputs are padded to
// whole panels with zeros. A panel is a sequence of steps:
//
//   PHLOEM_F32  one input of every output: 16 floats
//   PHLOEM_Q8   32 inputs (k is padded): 8 vectors of 64 bytes, in which byte 4 * lane + b of
//               vector v is q + 128 of input 4 * v + b; then 16 float16 d
//   PHLOEM_Q4   32 inputs (k is padded): 4 vectors of 64 bytes, in which byte 4 * lane + b of
//               vector v has q of input 4 * v + b in its low half and of input 16 + 4 * v + b in
//               its high half; then 16 float16 d, then 16 float16 m
//   PHLOEM_I8   32 inputs (k is padded): 8 vectors as those of PHLOEM_Q8
//
// After its steps a panel of PHLOEM_I8 has 16 floats d.
#pragma once

#include <cstddef>
#include <cstdint>

#include "phloem.h"
#include "quantized_rows.h"

namespace phloem {

constexpr int PANEL = LANES;
constexpr int Q8_VECTORS = 8, Q4_VECTORS = 4, I8_VECTORS = 8;
constexpr size_t VECTOR_BYTES = 64;
constexpr size_t F32_STEP = PANEL * sizeof(float);
constexpr size_t Q8_STEP = Q8_VECTORS * VECTOR_BYTES + PANEL * sizeof(uint16_t);
constexpr size_t Q4_STEP = Q4_VECTORS * VECTOR_BYTES + 2 * PANEL * sizeof(uint16_t);
constexpr size_t I8_STEP = I8_VECTORS * VECTOR_BYTES;

inline int panels_of(int n) { return (n + PANEL - 1) / PANEL; }

inline size_t step_bytes(int kind) {
  constexpr size_t BYTES[] = {F32_STEP, Q8_STEP, Q4_STEP, I8_STEP};  // by kind
  return BYTES[kind];
}

inline int steps_of(int kind, int k) { return kind == PHLOEM_F32 ? k : groups_of(k); }

// What a panel has after its steps.
inline size_t tail_bytes(int kind) { return kind == PHLOEM_I8 ? PANEL * sizeof(float) : 0; }

inline size_t panel_bytes(int kind, int k) {
  return step_bytes(kind) * steps_of(kind, k) + tail_bytes(kind);
}

}  // namespace phloem
