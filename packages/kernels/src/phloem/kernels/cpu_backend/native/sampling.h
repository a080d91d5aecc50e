// Choosing tokens: the likeliest, a draw from a filtered distribution, and logprobs.
#pragma once

#include <cstddef>
#include <cstdint>

#include "linear.h"
#include "phloem.h"
#include "team.h"
#include "token_masks.h"
#include "vocabulary.h"

namespace phloem {

// The id of the largest logit of each row, on ties the lowest, and whether all of them are finite
// (null: nobody asks). NaN is never the largest; a row with nothing above -infinity gives 0.
void argmax(Worker& worker, const Logits& logits, const Workspace& workspace, int64_t* ids,
            bool* finite);

// The largest of each row's logits among those that `masks` allow.
struct Greedy {
  int64_t* ids;   // [rows]
  bool* finite;   // [rows] whether all logits are, the forbidden ones too
  bool* allowed;  // [rows] whether a token was left to choose
};

// The same of the logits `linear(weight, x)`, which are never there as a whole. `memory` has the
// bytes that `argmax_linear_bytes` says, aligned to 4.
size_t argmax_linear_bytes(const phloem_weight& weight, int rows);
void argmax_linear(Worker& worker, const phloem_weight& weight, const LinearInput& x,
                   TokenMasks masks, void* memory, Greedy found);

// How rows are sampled; arrays have an element for each row.
struct Sampling {
  const float* temperature;  // above 0
  const int32_t* top_k;      // below 1: all
  const float* top_p;
  const float* min_p;
  const double* uniforms;  // in [0, 1)

  Sampling part(int first) const {
    return {temperature + first, top_k + first, top_p + first, min_p + first, uniforms + first};
  }
};

// Draws a token of each row, as `Ops.sample` says; rows without a finite maximum get any token.
void sample(Worker& worker, const Logits& logits, const Sampling& how, const Workspace& workspace,
            int64_t* ids);

struct TokenLogprobs {
  const int64_t* ids;  // [rows] what to look up
  int top;             // how many of the likeliest, at most the vocabulary
  float* chosen;       // [rows]
  int64_t* top_ids;    // [rows, top] likeliest first, of equal ones the lower ids
  float* top_logprobs;  // [rows, top]

  TokenLogprobs part(int first) const {
    const int64_t skipped = static_cast<int64_t>(first) * top;
    return {ids + first, top, chosen + first, top_ids + skipped, top_logprobs + skipped};
  }
};

// Log-softmax. All logprobs of a row are NaN where one of its logits is NaN or +infinity, or none
// is above -infinity; its top ids then say nothing.
void token_logprobs(Worker& worker, const Logits& logits, const TokenLogprobs& wanted,
                    const Workspace& workspace);

}  // namespace phloem
