// What crosses the border between this library and its callers: plain structs, pointers and sizes.
//
// Functions are declared beside their definitions, `extern "C"`, with names that start in
// `phloem_`. Arrays are the caller's: contiguous unless a stride says otherwise, and left alone for
// as long as a call, or an object made from them, lasts. Callers check arguments; this library does
// not.
#pragma once

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// How a weight is kept. In blocks, 32 consecutive inputs of an output share a scale; in PHLOEM_I8 all
// inputs of an output do.
enum phloem_weight_kind {
  PHLOEM_F32 = 0,
  PHLOEM_Q8 = 1,  // d * q, q from -128 to 127: GGUF's Q8_0
  PHLOEM_Q4 = 2,  // d * q + m, q from 0 to 15: GGUF's Q4_1, and Q4_0 with m = -8 d
  PHLOEM_I8 = 3,  // d * q, q from -127 to 127
};

// A weight [n, k], packed as linear.h says, and its bias.
typedef struct {
  int32_t kind;
  int32_t n;  // outputs
  int32_t k;  // inputs
  int32_t input_bits;  // of weights in blocks: of what stands for an input, 8 or 16
  const void* packed;
  const float* bias;  // [n] or null
} phloem_weight;

enum phloem_kv_dtype { PHLOEM_KV_F32 = 0, PHLOEM_KV_BF16 = 1, PHLOEM_KV_I8 = 2 };

// The keys or the values of a layer: slot s is token s % page_size of page s / page_size. Strides
// count elements (scales count scales); the elements of a head lie together.
typedef struct {
  void* elements;
  float* scales;  // PHLOEM_KV_I8: one for each token and head; else null
  int64_t page, token, head;
  int64_t scale_page, scale_token, scale_head;
} phloem_kv_part;

typedef struct {
  int32_t dtype;
  int32_t page_size;
  phloem_kv_part k, v;
} phloem_kv_layer;

#ifdef __cplusplus
}
#endif
