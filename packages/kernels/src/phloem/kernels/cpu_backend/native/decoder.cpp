// All layers of a Llama for one step, in one call: the team is started once and meets between
// phases only, and what a phase leaves for the next lies in one workspace.
//
// Owns the order of operations, which is that of phloem.kernels.decoder, and the workspace. The
// operations are those of linear.h, attention.h and elementwise.h.

#include <algorithm>
#include <cstring>

#include "attention.h"
#include "elementwise.h"
#include "hadamard.h"
#include "linear.h"
#include "sampling.h"

namespace phloem {

extern "C" {

typedef struct {
  const float* input_norm;
  const float* mlp_norm;
  phloem_weight qkv, output, gate_up, down;
} phloem_decoder_layer;

typedef struct {
  int32_t num_layers, hidden, heads, kv_heads, head_dim, intermediate;
  float eps;
  const phloem_decoder_layer* layers;
  phloem_weight embedding;
  const float* frequencies;  // [head_dim / 2]
  const float* norm;
  phloem_weight head;
  int32_t down_block;  // of the transform of what `down` reads; 0: none
} phloem_decoder;

typedef struct {
  int32_t tokens;
  const int64_t *ids, *positions, *slots;  // [tokens]
  const AttentionPlan* plan;
  const phloem_kv_layer* kv;  // [num_layers]
  float* hidden;              // [tokens, hidden], the result: of `wanted` the first rows
  void* workspace;            // phloem_decoder_workspace bytes, aligned to 64
  const int64_t* wanted;      // [num_wanted] ascending, or null: all
  int32_t num_wanted;
} phloem_step;

// A step in which row i computes the last query_lens[i] of its seq_lens[i] tokens and wants the
// likeliest next one.
typedef struct {
  const int32_t* row_table;
  int64_t row_stride;
  int32_t table_rows, table_width;
  float scale;  // of attention
  int32_t num_rows, num_tokens;
  const int32_t *rows, *query_lens, *seq_lens;  // [num_rows]
  const int32_t *given_ids, *given_slots;       // [num_tokens]
  int64_t *ids, *positions, *slots;             // [num_tokens], of the step
  int64_t* wanted;                              // [num_rows], of the step
  AttentionPlan* plan;
  const phloem_kv_layer* kv;
  float* hidden;
  void* workspace;
  int64_t* found;  // what is found, see `Greedy`
  bool *finite, *allowed;
  int32_t* tokens;  // the ids, where all rows have one
  int64_t* newest;  // [table_rows], or null: the ids by row of the table
} phloem_greedy;
}

namespace {

// Tokens of a task between the linears: enough work to be worth handing out.
constexpr int TOKENS_AT_ONCE = 8;
constexpr int MOST_INPUT_BITS = 16;

size_t aligned(size_t bytes) { return (bytes + 63) / 64 * 64; }

// Where a step's intermediate results lie.
struct StepMemory {
  float *angles, *qkv, *attended, *activated, *normed;
  void *quantized, *maxima;
  size_t bytes = 0;

  StepMemory(const phloem_decoder& d, int tokens, void* memory) {
    const size_t t = tokens;
    const int queries = d.heads * d.head_dim;
    angles = floats(memory, t * d.head_dim);
    qkv = floats(memory, t * (queries + 2 * d.kv_heads * d.head_dim));
    attended = floats(memory, t * queries);
    activated = floats(memory, t * d.intermediate);
    normed = floats(memory, t * d.hidden);
    const int widest = std::max({d.hidden, d.intermediate, queries});
    quantized = piece(memory, QuantizedRows::bytes(tokens, widest, MOST_INPUT_BITS));
    maxima = piece(memory, argmax_linear_bytes(d.head, tokens));
  }

 private:
  float* floats(void* memory, size_t count) {
    return static_cast<float*>(piece(memory, count * sizeof(float)));
  }

  void* piece(void* memory, size_t size) {
    void* at = static_cast<char*>(memory) + bytes;
    bytes += aligned(size);
    return at;
  }
};

// Calls row(r) for every row, some at a time.
template <class Row>
void each_row(Worker& worker, int rows, Row row) {
  const int tasks = (rows + TOKENS_AT_ONCE - 1) / TOKENS_AT_ONCE;
  worker.each(tasks, [=](size_t task) {
    const int first = static_cast<int>(task) * TOKENS_AT_ONCE;
    for (int r = first; r < std::min(rows, first + TOKENS_AT_ONCE); ++r) row(r);
  });
}

// The norm of `rows` rows of x in the form that a weight reads; `normed` and `quantized` hold it.
LinearInput normed_input(Worker& worker, const phloem_weight& weight, const float* x, int rows,
                         const float* norm, float eps, float* normed, void* quantized) {
  const int k = weight.k;
  ask_for(worker, weight, rows);
  LinearInput input{rows, normed, input_at(quantized, weight, rows)};
  each_row(worker, rows, [=, kind = weight.kind](int r) {
    float* out = normed + static_cast<size_t>(r) * k;
    rms_norm(x + static_cast<size_t>(r) * k, norm, eps, k, out);
    if (kind != PHLOEM_F32) quantize_row(input.quantized, r, out, k);
  });
  return input;
}

// Rows of x in the form that a weight reads; transformed first, where `block` is not 0.
LinearInput plain_input(Worker& worker, const phloem_weight& weight, float* x, int rows,
                        void* quantized, int block = 0) {
  const int k = weight.k;
  LinearInput input{rows, x, input_at(quantized, weight, rows)};
  const bool is_float = weight.kind == PHLOEM_F32;
  ask_for(worker, weight, rows);
  if (!is_float || block != 0)
    each_row(worker, rows, [=](int r) {
      float* row = x + static_cast<size_t>(r) * k;
      if (block != 0) hadamard(row, k, block);
      if (!is_float) quantize_row(input.quantized, r, row, k);
    });
  return input;
}

void start(Worker& worker, const phloem_decoder& d, const phloem_step& s, const StepMemory& w) {
  each_row(worker, s.tokens, [&d, &s, &w](int t) {
    unpack_row(d.embedding, s.ids[t], s.hidden + static_cast<size_t>(t) * d.hidden);
    angles_of(s.positions[t], d.frequencies, d.head_dim,
              w.angles + static_cast<size_t>(t) * d.head_dim);
  });
}

// Keys and values only: who takes a query rotates it, rather than bring it to another core twice.
void rotate_and_store(Worker& worker, const phloem_decoder& d, const phloem_step& s,
                      const StepMemory& w, const phloem_kv_layer& kv) {
  const int queries = d.heads * d.head_dim, width = queries + 2 * d.kv_heads * d.head_dim;
  each_row(worker, s.tokens, [&d, &s, &w, &kv, queries, width](int t) {
    float* k = w.qkv + static_cast<size_t>(t) * width + queries;
    const float* angles = w.angles + static_cast<size_t>(t) * d.head_dim;
    for (int h = 0; h < d.kv_heads; ++h) {
      float* head = k + h * d.head_dim;
      rotate(head, angles, d.head_dim, head);
    }
    store_kv(kv, kv.k, s.slots[t], k, d.kv_heads, d.head_dim);
    store_kv(kv, kv.v, s.slots[t], k + d.kv_heads * d.head_dim, d.kv_heads, d.head_dim);
  });
}

// Moves the wanted rows of x, `stride` floats each, to the front.
void keep_wanted(const phloem_step& s, float* x, int stride) {
  for (int i = 0; i < s.num_wanted; ++i)
    std::memmove(x + static_cast<size_t>(i) * stride, x + s.wanted[i] * stride,
                 stride * sizeof(float));
}

void run_layer(Worker& worker, const phloem_decoder& d, const phloem_step& s, const StepMemory& w,
               const phloem_decoder_layer& layer, const phloem_kv_layer& kv, bool is_last) {
  const int queries = d.heads * d.head_dim;
  const int width = queries + 2 * d.kv_heads * d.head_dim;
  LinearInput x = normed_input(worker, layer.qkv, s.hidden, s.tokens, layer.input_norm, d.eps,
                               w.normed, w.quantized);
  linear(worker, layer.qkv, x, w.qkv, width, Then::STORE);
  rotate_and_store(worker, d, s, w, kv);
  attend(worker, *s.plan, kv, {w.qkv, width, w.attended, queries, w.angles});
  const bool some = is_last && s.wanted != nullptr;
  const int tokens = some ? s.num_wanted : s.tokens;
  if (some)
    worker.each(1, [&s, &w, &d, queries](size_t) {
      keep_wanted(s, w.attended, queries);
      keep_wanted(s, s.hidden, d.hidden);
    });
  x = plain_input(worker, layer.output, w.attended, tokens, w.quantized);
  linear(worker, layer.output, x, s.hidden, d.hidden, Then::ADD);
  x = normed_input(worker, layer.gate_up, s.hidden, tokens, layer.mlp_norm, d.eps, w.normed,
                   w.quantized);
  linear(worker, layer.gate_up, x, w.activated, d.intermediate, Then::SILU_MUL);
  x = plain_input(worker, layer.down, w.activated, tokens, w.quantized, d.down_block);
  linear(worker, layer.down, x, s.hidden, d.hidden, Then::ADD);
}

}  // namespace
}  // namespace phloem

using namespace phloem;

extern "C" {

// Bytes that a step of so many tokens, or the head for so many rows, works in.
size_t phloem_decoder_workspace(const phloem_decoder* decoder, int tokens) {
  return StepMemory(*decoder, tokens, nullptr).bytes;
}

void phloem_decoder_forward(Team* team, const phloem_decoder* decoder, const phloem_step* step) {
  const StepMemory w(*decoder, step->tokens, step->workspace);
  team->run([&](Worker& worker) {
    start(worker, *decoder, *step, w);
    for (int i = 0; i < decoder->num_layers; ++i)
      run_layer(worker, *decoder, *step, w, decoder->layers[i], step->kv[i],
                i == decoder->num_layers - 1);
  });
}

// Final norm and head of `rows` rows of hidden: logits [rows, n of the head].
void phloem_decoder_logits(Team* team, const phloem_decoder* decoder, const float* hidden, int rows,
                           void* workspace, float* logits) {
  const StepMemory w(*decoder, rows, workspace);
  team->run([&](Worker& worker) {
    const LinearInput x = normed_input(worker, decoder->head, hidden, rows, decoder->norm,
                                       decoder->eps, w.normed, w.quantized);
    linear(worker, decoder->head, x, logits, decoder->head.n, Then::STORE);
  });
}

// The largest logits, see `Greedy`, among those with a bit in `bits`, [rows, ceil(n / 32)], or null.
void phloem_decoder_greedy(Team* team, const phloem_decoder* decoder, const float* hidden, int rows,
                           const uint32_t* bits, void* workspace, int64_t* ids, bool* finite,
                           bool* allowed) {
  const StepMemory w(*decoder, rows, workspace);
  team->run([&](Worker& worker) {
    const LinearInput x = normed_input(worker, decoder->head, hidden, rows, decoder->norm,
                                       decoder->eps, w.normed, w.quantized);
    const TokenMasks masks{bits, (decoder->head.n + WORD - 1) / WORD};
    argmax_linear(worker, decoder->head, x, masks, w.maxima, {ids, finite, allowed});
  });
}

// Runs the layers; 0, and nothing was done, if a row is none of the table's, has no query, or more
// tokens than the table is wide, if the queries are not the tokens, or an id is one that stands for a
// token that is not known yet.
int phloem_greedy_run(Team* team, const phloem_decoder* decoder, const phloem_greedy* greedy) {
  const phloem_greedy& g = *greedy;
  int64_t tokens = 0;
  for (int i = 0; i < g.num_rows; ++i) {
    const int32_t queries = g.query_lens[i], length = g.seq_lens[i];
    if (g.rows[i] < 0 || g.rows[i] >= g.table_rows) return 0;
    if (queries < 1 || queries > length || length > g.table_width) return 0;
    tokens += queries;
  }
  if (g.num_rows == 0 || tokens != g.num_tokens) return 0;
  for (int t = 0; t < g.num_tokens; ++t) {
    if (g.given_ids[t] < 0) return 0;
    g.ids[t] = g.given_ids[t];
    g.slots[t] = g.given_slots[t];
  }
  int t = 0;
  for (int i = 0; i < g.num_rows; ++i) {
    for (int p = g.seq_lens[i] - g.query_lens[i]; p < g.seq_lens[i]; ++p) g.positions[t++] = p;
    g.wanted[i] = t - 1;
  }
  phloem_plan_build(g.plan, g.row_table, g.row_stride, g.rows, g.query_lens, g.seq_lens, g.num_rows,
                    decoder->heads, decoder->kv_heads, decoder->head_dim, decoder->head_dim,
                    g.scale);
  const bool all = g.num_tokens == g.num_rows;
  const phloem_step step = {g.num_tokens, g.ids,       g.positions,
                            g.slots,      g.plan,      g.kv,
                            g.hidden,     g.workspace, all ? nullptr : g.wanted,
                            all ? 0 : g.num_rows};
  phloem_decoder_forward(team, decoder, &step);
  return 1;
}

// The likeliest tokens of the step that was run, of those with a bit in `bits`; whether there is one
// in every row.
int phloem_greedy_tokens(Team* team, const phloem_decoder* decoder, const phloem_greedy* greedy,
                         const uint32_t* bits) {
  const phloem_greedy& g = *greedy;
  phloem_decoder_greedy(team, decoder, g.hidden, g.num_rows, bits, g.workspace, g.found, g.finite,
                        g.allowed);
  bool all = true;
  for (int i = 0; i < g.num_rows; ++i) {
    all = all && g.finite[i] && g.allowed[i];
    g.tokens[i] = static_cast<int32_t>(g.found[i]);
    if (g.newest) g.newest[g.rows[i]] = g.found[i];
  }
  return all;
}

// Both in one: 0 if nothing was done, 1 if there is no token in some row, else 2.
int phloem_greedy_step(Team* team, const phloem_decoder* decoder, const phloem_greedy* greedy) {
  if (!phloem_greedy_run(team, decoder, greedy)) return 0;
  return 1 + phloem_greedy_tokens(team, decoder, greedy, nullptr);
}
}
