// The rows of a step, cut into tiles of queries that read the same blocks.
//
// Owns who reads what and when; the arithmetic is attention.cpp's, and the cut changes none of it.
// A span is four blocks. Tiles of the first phase leave the results of spans behind: of spans whose
// blocks several rows share, read once for all of them, and of those of a row that would keep one
// thread busy while others have nothing to do. A tile of the second phase merges what was left for
// its queries, does their remaining spans and writes the output. Merging goes from the first span
// on, so a tile of the first phase that does a row's first spans may merge them itself.
#pragma once

#include <cstdint>
#include <vector>

#include "attention.h"
#include "simd.h"

namespace phloem {

constexpr int SPAN_BLOCKS = 4;
constexpr int SPAN = SPAN_BLOCKS * BLOCK;

// Consecutive tokens of a row.
struct Piece {
  int32_t row;
  int32_t token;  // the first, among the tokens of the step
  int32_t count;
  int32_t position;  // of the first
};

// A block, and the tokens [begin, end) of a tile that read it.
struct Step {
  int64_t slots;  // where the block's slots begin in the plan's
  int32_t start;  // its first position
  int32_t count;  // how many of its positions are read
  int32_t begin, end;
  bool in_line;  // whether each of these slots is the one after the slot before it
};

struct Tile {
  int32_t first_piece, end_piece;
  int32_t first_step, end_step;
  int32_t tokens;
  int32_t span;   // the first that it does
  int32_t spans;  // how many the first phase does, and merges
};

struct PlanRow {
  int64_t slots;  // where the row's slots begin in the plan's
  int64_t results;  // where its results of spans begin, in records
  int32_t first_token, query_len, seq_len;
  int32_t alone;   // from this span on no other row reads its blocks
  int32_t merged;  // spans that the first of its results has; 1 where tiles merge none
  int32_t stored;  // spans that the first phase does

  int position() const { return seq_len - query_len; }
  int blocks() const { return (seq_len + BLOCK - 1) / BLOCK; }
  int spans() const { return (seq_len + SPAN - 1) / SPAN; }
};

// How rows share blocks, while it is found out.
struct Sharing {
  struct Range {
    int begin, end;
  };
  // Rows, those with equal blocks together.
  std::vector<int32_t> order;
  // For a span's blocks: the place in the order of the first row that reads the same block; -1: the
  // row has no such block.
  std::vector<int32_t> classes[SPAN_BLOCKS];
  std::vector<Range> live, next;  // rows that share all before a span
  std::vector<int32_t> places;    // of a tile's pieces in the order
};

// It keeps the memory of all of these from step to step.
struct AttentionPlan {
  explicit AttentionPlan(int threads) : threads(threads) {}

  const int threads;  // of the team it is cut for
  int heads = 0, kv_heads = 0, head_dim = 0, value_dim = 0;
  float scale = 0;
  std::vector<int32_t> slots;  // every row's, padded with 0 to whole blocks
  std::vector<PlanRow> rows;
  std::vector<Piece> pieces;
  std::vector<Step> steps;
  std::vector<Tile> first, second;  // the phases
  mutable std::vector<f32x16> results;  // what the first phase leaves to the second
  int most_tokens = 0;  // of a tile
  Sharing sharing;

  int group() const { return heads / kv_heads; }
  int value_vectors() const { return (value_dim + LANES - 1) / LANES; }
  // A record is the unnormalised sum of a query's values, then its maximum and its denominator.
  int record_vectors() const { return value_vectors() + 1; }
  // The record of query head 0 at token `token` (among the step's) of a row.
  f32x16* record(const PlanRow& row, int span, int token) const {
    const int64_t index = static_cast<int64_t>(span) * row.query_len + token - row.first_token;
    return results.data() + (row.results + index * heads) * record_vectors();
  }
};

}  // namespace phloem
