// Causal attention over a paged KV cache.
//
// Keys and values are read in blocks of 64 absolute positions. What a query gets from a block
// depends on nothing but the query and the block, and a query's blocks are merged in the order of
// their positions: so decode, a chunk of a prefill, a shared prefix and any number of threads give
// the same bits.
#pragma once

#include <cstdint>

#include "phloem.h"
#include "team.h"

namespace phloem {

constexpr int BLOCK = 64;

struct AttentionPlan;  // attention_plan.h: the rows of a step, cut into tasks

// Queries and output: [T, heads, head_dim], `stride` floats from token to token.
struct AttentionInput {
  const float* q;
  int64_t q_stride;
  float* out;
  int64_t out_stride;
  // [T, head_dim], of elementwise.h: queries are rotated when they are taken; null: they were.
  const float* angles = nullptr;
};

// The phases of the team that attend to one layer, whose K and V hold the step's tokens already.
void attend(Worker& worker, const AttentionPlan& plan, const phloem_kv_layer& kv,
            const AttentionInput& io);

}  // namespace phloem

extern "C" void phloem_plan_build(phloem::AttentionPlan* plan, const int32_t* row_table,
                                  int64_t row_stride, const int32_t* rows,
                                  const int32_t* query_lens, const int32_t* seq_lens,
                                  int32_t num_rows, int32_t heads, int32_t kv_heads,
                                  int32_t head_dim, int32_t value_dim, float scale);
