#include "linear.h"

#include <algorithm>
#include <array>
#include <utility>

#include "linear_tiles.h"
#include "native.h"
#include "packed.h"
#include "simd.h"

namespace phloem {
namespace {

using Tile = void (*)(const Panels&, const LinearInput&, int k, int row, float* y);
using Tiles = std::array<Tile, MAX_TILE>;

template <size_t... I>
constexpr std::array<Tiles, 6> tiles_of_kinds(std::index_sequence<I...>) {
  return {{{tile<PHLOEM_F32, false, I + 1>...},
           {tile<PHLOEM_Q8, false, I + 1>...},
           {tile<PHLOEM_Q4, false, I + 1>...},
           {tile<PHLOEM_I8, false, I + 1>...},
           {tile<PHLOEM_Q8, true, I + 1>...},
           {tile<PHLOEM_Q4, true, I + 1>...}}};
}

// By kind, then the kinds in blocks for inputs of 16 bits; and by number of rows, less 1.
constexpr std::array<Tiles, 6> TILES = tiles_of_kinds(std::make_index_sequence<MAX_TILE>{});

const Tiles& tiles_for(int kind, const QuantizedRows& x) {
  return TILES[x.wide == nullptr ? kind : kind - PHLOEM_Q8 + PHLOEM_I8 + 1];
}

constexpr int ceil_div(int a, int b) { return (a + b - 1) / b; }

// One linear, and how it is cut into tasks: a run of pairs of panels with a block of rows. Panels
// meet all blocks of rows before the next panels come from memory. A pair is a panel of the first
// half of the outputs and its partner in the second, the gate's and the up projection's in a
// SILU_MUL: so a run reads two sequences of memory, which processors foresee, and no pieces of one.
class Job {
 public:
  Job(const phloem_weight& weight, const LinearInput& x, float* out, int64_t stride, Then then,
      int team_size);

  size_t tasks() const { return static_cast<size_t>(runs_) * blocks_; }
  // `next` is a task that this thread will probably compute after this one, if there is one.
  void run(size_t task, size_t next) const;
  // Asks memory for what the task reads first.
  void ask_for(size_t task) const;

 private:
  int first_pair(size_t task) const { return static_cast<int>(task / blocks_) * run_; }
  Panels panels_of(int pair) const;
  void run_pair(int pair, int next, int row, int end) const;
  Panels panels_of_tile(int pair, int next, int tile, int tiles, int rows) const;
  void ask_for_output(int pair, int row, int rows) const;
  void finish(int pair, int row, int rows, const float* y) const;
  void put(int output, int row, f32x16 y) const;
  f32x16 biased(f32x16 y, int output) const;

  const phloem_weight& weight_;
  const LinearInput& x_;
  const Tiles& tiles_;
  float* const out_;
  const int64_t stride_;
  const Then then_;
  const size_t panel_bytes_;
  const int panels_, pairs_;
  int block_, blocks_;  // rows
  int run_, runs_;      // pairs
};

// What a task should take, and what a thread does in a nanosecond: bytes from memory, and products
// of a number with a weight.
constexpr float TASK_NS = 20000.0f;
constexpr float BYTES_PER_NS = 12.0f;
constexpr float F32_PER_NS = 3.0f * native::WIDTH, QUANTIZED_PER_NS = 9.0f * native::WIDTH;
// A pair of panels that is larger is no use to ask for ahead: it would push itself out again.
constexpr size_t MAX_AHEAD = 128 << 10;
constexpr size_t NEAR_AHEAD = 4 << 10;
// Rows from which on a single tile is busy enough to read late.
constexpr int BUSY_TILE = 5;

Job::Job(const phloem_weight& weight, const LinearInput& x, float* out, int64_t stride, Then then,
         int team_size)
    : weight_(weight),
      x_(x),
      tiles_(tiles_for(weight.kind, x.quantized)),
      out_(out),
      stride_(stride),
      then_(then),
      panel_bytes_(panel_bytes(weight.kind, weight.k)),
      panels_(phloem::panels_of(weight.n)),
      pairs_(ceil_div(panels_, PAIR)) {
  const bool is_float = weight.kind == PHLOEM_F32;
  blocks_ = ceil_div(x.rows, is_float ? 96 : 192);
  block_ = ceil_div(ceil_div(x.rows, blocks_), MAX_TILE) * MAX_TILE;
  blocks_ = ceil_div(x.rows, block_);
  const float products = static_cast<float>(PAIR * PANEL) * weight.k * std::min(block_, x.rows);
  const float pair_ns = std::max(PAIR * panel_bytes_ / BYTES_PER_NS,
                                 products / (is_float ? F32_PER_NS : QUANTIZED_PER_NS));
  const int fair = ceil_div(pairs_, 4 * team_size);
  run_ = std::clamp(static_cast<int>(TASK_NS / pair_ns), 1, fair);
  runs_ = ceil_div(pairs_, run_);
}

void Job::run(size_t task, size_t next) const {
  const int first = first_pair(task), end = std::min(first + run_, pairs_);
  const int row = static_cast<int>(task % blocks_) * block_;
  for (int pair = first; pair < end; ++pair) {
    const int after = pair + 1 < end ? pair + 1 : next < tasks() ? first_pair(next) : pair;
    run_pair(pair, after, row, std::min(row + block_, x_.rows));
  }
}

void Job::ask_for(size_t task) const {
  if (task >= tasks()) return;
  const Panels panels = panels_of(first_pair(task));
  for (size_t i = 0; i < std::min(panel_bytes_, MAX_AHEAD / PAIR); i += VECTOR_BYTES) {
    for (const uint8_t* panel : panels.at) __builtin_prefetch(panel + i, 0, 2);
  }
}

Panels Job::panels_of(int pair) const {
  const uint8_t* first = static_cast<const uint8_t*>(weight_.packed) + pair * panel_bytes_;
  // Of an odd number of panels the last is its own partner.
  return {{first, first + (pair + pairs_ < panels_ ? pairs_ * panel_bytes_ : 0)}};
}

// The rows in tiles of about equal size.
void Job::run_pair(int pair, int next, int row, int end) const {
  const int tiles = ceil_div(end - row, MAX_TILE);
  for (int tile = 0; tile < tiles; ++tile) {
    const int rows = ceil_div(end - row, tiles - tile);
    ask_for_output(pair, row, rows);
    alignas(64) float y[MAX_TILE * PAIR * PANEL];
    const Panels panels = panels_of_tile(pair, next, tile, tiles, rows);
    tiles_[rows - 1](panels, x_, weight_.k, row, y);
    finish(pair, row, rows, y);
    row += rows;
  }
}

// Each of several tiles asks for a share of the next pair. A single one asks for what it will read
// soon, or, with so few rows that it does little but read, leaves that to the processor.
Panels Job::panels_of_tile(int pair, int next, int tile, int tiles, int rows) const {
  Panels panels = panels_of(pair);
  const int lines = ceil_div(step_bytes(weight_.kind), VECTOR_BYTES);
  if (tiles == 1) {
    for (int i = 0; i < PAIR; ++i) panels.ask[i] = panels.at[i] + NEAR_AHEAD;
    panels.lines = rows < BUSY_TILE ? 0 : lines;
  } else if (PAIR * panel_bytes_ <= MAX_AHEAD && next != pair) {
    const Panels after = panels_of(next);
    const int share = ceil_div(lines, tiles), asked = share * tile;
    for (int i = 0; i < PAIR; ++i) panels.ask[i] = after.at[i] + asked * VECTOR_BYTES;
    panels.lines = std::clamp(lines - asked, 0, share);
  }
  return panels;
}

// With many outputs its rows are far from each other, and come while the tile is computed.
void Job::ask_for_output(int pair, int row, int rows) const {
  for (int r = row; r < row + rows; ++r) {
    const float* to = out_ + r * stride_ + pair * PANEL;
    __builtin_prefetch(to, 1);
    if (then_ != Then::SILU_MUL) __builtin_prefetch(to + pairs_ * PANEL, 1);
  }
}

void Job::finish(int pair, int row, int rows, const float* y) const {
  const int output = pair * PANEL, second = output + pairs_ * PANEL;
  for (int r = 0; r < rows; ++r, y += PAIR * PANEL) {
    const f32x16 y0 = load(y), y1 = load(y + PANEL);
    if (then_ == Then::SILU_MUL) {
      const f32x16 gate = biased(y0, output), up = biased(y1, second);
      store(out_ + (row + r) * stride_ + output, silu(gate) * up);
    } else {
      put(output, row + r, y0);
      if (second < weight_.n) put(second, row + r, y1);
    }
  }
}

void Job::put(int output, int row, f32x16 y) const {
  const int lanes = std::min(PANEL, weight_.n - output);
  float* to = out_ + row * stride_ + output;
  y = biased(y, output);
  if (lanes == PANEL) {
    store(to, then_ == Then::ADD ? load(to) + y : y);
  } else {
    if (then_ == Then::ADD) y = load_some(to, lanes) + y;
    store_some(to, y, lanes);
  }
}

f32x16 Job::biased(f32x16 y, int output) const {
  if (weight_.bias == nullptr) return y;
  return y + load_some(weight_.bias + output, std::min(PANEL, weight_.n - output));
}

}  // namespace

void linear(Worker& worker, const phloem_weight& weight, const LinearInput& x, float* out,
            int64_t stride, Then then) {
  if (x.rows == 0) return;
  const Job job(weight, x, out, stride, then, worker.team_size());
  worker.each(job.tasks(),
              [&, size = worker.team_size()](size_t task) { job.run(task, task + size); });
}

void ask_for(const Worker& worker, const phloem_weight& weight, int rows) {
  if (rows == 0) return;
  const LinearInput x{rows, nullptr, {}};
  Job(weight, x, nullptr, 0, Then::STORE, worker.team_size()).ask_for(worker.index());
}

void linear_in_task(const phloem_weight& weight, const LinearInput& x, float* out, int64_t stride) {
  if (x.rows == 0) return;
  const Job job(weight, x, out, stride, Then::STORE, 1);
  for (size_t task = 0; task < job.tasks(); ++task) job.run(task, task + 1);
}

void quantize_rows(Worker& worker, const QuantizedRows& x, const float* values, int k) {
  const int rows = std::max(1, 512 / x.groups);
  worker.each(ceil_div(x.rows, rows), [&](size_t task) {
    const int first = static_cast<int>(task) * rows;
    for (int r = first; r < std::min(first + rows, x.rows); ++r)
      quantize_row(x, r, values + static_cast<size_t>(r) * k, k);
  });
}

}  // namespace phloem

using namespace phloem;

extern "C" {

// Bytes of scratch that `phloem_linear` needs for `rows` rows, aligned to 64 bytes.
size_t phloem_linear_scratch(const phloem_weight* weight, int rows) {
  return input_bytes(*weight, rows);
}

// out [rows, n], or [rows, n / 2] with SILU_MUL, of x [rows, k]; `then` is a `Then`.
void phloem_linear(Team* team, const phloem_weight* weight, const float* x, int rows,
                   void* scratch, float* out, int64_t out_stride, int then) {
  team->run([=](Worker& worker) {
    LinearInput input{rows, x, {}};
    if (weight->kind != PHLOEM_F32) {
      input.quantized = input_at(scratch, *weight, rows);
      quantize_rows(worker, input.quantized, x, weight->k);
    }
    linear(worker, *weight, input, out, out_stride, static_cast<Then>(then));
  });
}
}
