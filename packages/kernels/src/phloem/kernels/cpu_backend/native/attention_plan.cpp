#include "attention_plan.h"

#include <algorithm>
#include <cstring>

namespace phloem {
namespace {

// More queries than this make a tile no faster: reading a block is hidden by then.
constexpr int TILE_QUERIES = 64;
// The same of rows that share blocks: their tiles are many, and most of them full.
constexpr int SHARED_TILE_QUERIES = 2 * TILE_QUERIES;
// What reading a block costs, in units of one query's arithmetic on a block.
constexpr int READ_COST = 12;
// A tile of rows that share only some of their blocks should not be longer than this.
constexpr int TILE_COST = TILE_QUERIES * SPAN_BLOCKS + READ_COST * SPAN_BLOCKS;
// So many tasks for each thread keep the threads about equally busy.
constexpr int TASKS_PER_THREAD = 4;
// Tasks that merge spans start before all others: so few of them do the same.
constexpr int MERGING_TASKS_PER_THREAD = 2;

class Builder {
 public:
  explicit Builder(AttentionPlan& plan)
      : plan_(plan),
        tile_tokens_(std::max(1, TILE_QUERIES / plan.group())),
        shared_tile_tokens_(std::max(1, SHARED_TILE_QUERIES / plan.group())),
        sharing_(plan.sharing) {}

  void build() {
    plan_.pieces.clear();
    plan_.steps.clear();
    plan_.first.clear();
    plan_.second.clear();
    plan_.most_tokens = 0;
    find_shared();
    split_long_rows();
    for (PlanRow& row : plan_.rows) finish_row(row);
    reserve_results();
  }

 private:
  using Range = Sharing::Range;

  void find_shared();
  void split(Range range, int block, int level);
  void split_run(Range run, int block, std::vector<int32_t>& classes);
  int spans_to_merge(Range rows) const;
  void add_family(Range family, int span, int spans);
  void split_long_rows();
  void finish_row(PlanRow& row);
  void add_span_tiles(const PlanRow& row, int span);
  void add_row_steps(const PlanRow& row, int first_block, int end_block);
  void add_step(Step step);
  void reserve_results();

  const int32_t* block_slots(int row, int block) const {
    return plan_.slots.data() + plan_.rows[row].slots + static_cast<int64_t>(block) * BLOCK;
  }
  bool whole(int row, int block) const { return plan_.rows[row].seq_len >= (block + 1) * BLOCK; }
  bool same(int a, int b, int block) const {
    return std::memcmp(block_slots(a, block), block_slots(b, block), BLOCK * 4) == 0;
  }
  int row_tiles(const PlanRow& row) const {
    return (row.query_len + tile_tokens_ - 1) / tile_tokens_;
  }
  int row_tile_tokens(const PlanRow& row) const {
    return (row.query_len + row_tiles(row) - 1) / row_tiles(row);
  }

  Tile& open_tile(std::vector<Tile>& tiles, int span, int spans = 1);
  void close_tile(Tile& tile);
  void add_piece(Tile& tile, const PlanRow& row, int token, int count);
  void add_family_steps(const Tile& tile);
  void add_shared_steps(const Tile& tile, int span);

  AttentionPlan& plan_;
  const int tile_tokens_, shared_tile_tokens_;
  Sharing& sharing_;
};

Tile& Builder::open_tile(std::vector<Tile>& tiles, int span, int spans) {
  const int piece = static_cast<int>(plan_.pieces.size());
  const int step = static_cast<int>(plan_.steps.size());
  tiles.push_back({piece, piece, step, step, 0, span, spans});
  return tiles.back();
}

void Builder::close_tile(Tile& tile) {
  tile.end_step = static_cast<int>(plan_.steps.size());
  plan_.most_tokens = std::max(plan_.most_tokens, tile.tokens);
}

void Builder::add_piece(Tile& tile, const PlanRow& row, int token, int count) {
  const int32_t index = static_cast<int32_t>(&row - plan_.rows.data());
  const int32_t position = row.position() + token - row.first_token;
  plan_.pieces.push_back({index, token, count, position});
  tile.end_piece = static_cast<int>(plan_.pieces.size());
  tile.tokens += count;
}

// Rows share the blocks before the first one in which their slots differ.
void Builder::find_shared() {
  Sharing& s = sharing_;
  const int rows = static_cast<int>(plan_.rows.size());
  s.order.resize(rows);
  for (auto& classes : s.classes) classes.resize(rows);
  for (int i = 0; i < rows; ++i) s.order[i] = i;
  s.live.clear();
  if (rows > 1) s.live.push_back({0, rows});
  for (int span = 0; !s.live.empty(); ++span) {
    s.next.clear();
    for (const Range range : s.live) {
      if (span > 0 && span < plan_.rows[s.order[range.begin]].merged) {
        s.next.push_back(range);
        continue;
      }
      for (int level = 0; level < SPAN_BLOCKS; ++level)
        split(range, span * SPAN_BLOCKS + level, level);
      const std::vector<int32_t>&first = s.classes[0], &last = s.classes[SPAN_BLOCKS - 1];
      for (int begin = range.begin, end; begin < range.end; begin = end) {
        for (end = begin + 1; end < range.end && first[end] == begin;) ++end;
        const bool shared = end - begin > 1;
        const bool whole = std::all_of(last.begin() + begin, last.begin() + end,
                                       [begin](int32_t c) { return c == begin; });
        const int spans = span == 0 && shared && whole ? spans_to_merge({begin, end}) : 1;
        for (int i = begin; i < end; ++i) {
          plan_.rows[s.order[i]].alone = shared ? span + spans : span;
          if (spans > 1) plan_.rows[s.order[i]].merged = spans;
        }
        if (shared) add_family({begin, end}, span, spans);
      }
      for (int begin = range.begin, end; begin < range.end; begin = end) {
        for (end = begin + 1; end < range.end && last[end] == begin;) ++end;
        if (end - begin > 1) s.next.push_back({begin, end});
      }
    }
    std::swap(s.live, s.next);
  }
}

// Sets the classes of a block for the rows of a range, which share what is before the span.
void Builder::split(Range range, int block, int level) {
  std::vector<int32_t>& classes = sharing_.classes[level];
  if (level == 0) return split_run(range, block, classes);
  const std::vector<int32_t>& before = sharing_.classes[level - 1];
  for (int begin = range.begin, end; begin < range.end; begin = end) {
    for (end = begin + 1; end < range.end && before[end] == begin;) ++end;
    split_run({begin, end}, block, classes);
  }
}

void Builder::split_run(Range run, int block, std::vector<int32_t>& classes) {
  int32_t* order = sharing_.order.data();
  const auto equal = [&](int a, int b) {
    return whole(a, block) && whole(b, block) && same(a, b, block);
  };
  int ordered = run.begin + 1;
  while (ordered < run.end && equal(order[run.begin], order[ordered])) ++ordered;
  if (ordered < run.end) {
    // What was in order need not stay in front.
    ordered = run.begin;
    std::sort(order + run.begin, order + run.end, [&](int a, int b) {
      if (whole(a, block) != whole(b, block)) return whole(a, block);
      const int by_slots = whole(a, block) ? std::memcmp(block_slots(a, block),
                                                         block_slots(b, block), BLOCK * 4) : 0;
      return by_slots != 0 ? by_slots < 0 : a < b;
    });
  }
  for (int i = run.begin; i < run.end; ++i) {
    const bool present = plan_.rows[order[i]].seq_len > block * BLOCK;
    const bool joins = i > run.begin && (i < ordered || equal(order[i - 1], order[i]));
    classes[i] = !present ? -1 : joins ? classes[i - 1] : i;
  }
}

// How many spans tiles of these rows, which share all of the first one, do and merge: of those that
// they share and that lie before all their queries, so many that threads still find tasks.
int Builder::spans_to_merge(Range rows) const {
  const int32_t* order = sharing_.order.data();
  int64_t tokens = 0;
  int spans = plan_.rows[order[rows.begin]].position() / SPAN;
  for (int i = rows.begin; i < rows.end; ++i) {
    const PlanRow& row = plan_.rows[order[i]];
    tokens += row.query_len;
    spans = std::min(spans, row.position() / SPAN);
    for (int block = SPAN_BLOCKS; block < spans * SPAN_BLOCKS; ++block)
      if (!same(order[rows.begin], order[i], block)) spans = block / SPAN_BLOCKS;
  }
  const int64_t tasks = (tokens + shared_tile_tokens_ - 1) / shared_tile_tokens_ * plan_.kv_heads;
  const int64_t most = spans * tasks / (MERGING_TASKS_PER_THREAD * plan_.threads);
  return static_cast<int>(std::max<int64_t>(1, std::min<int64_t>(spans, most)));
}

// Tiles of rows that share the first block of a span, or more; all of several `spans`.
void Builder::add_family(Range family, int span, int spans) {
  Sharing& s = sharing_;
  std::vector<int32_t>& places = s.places;
  Tile* tile = nullptr;
  int cost = 0;
  for (int place = family.begin; place < family.end; ++place) {
    const PlanRow& row = plan_.rows[s.order[place]];
    const int end = row.first_token + row.query_len;
    int token = row.first_token + std::max(0, span * SPAN - row.position());
    while (token < end) {
      int reads = 0;
      for (const auto& classes : s.classes)
        reads += classes[place] >= 0 && (tile == nullptr || classes[place] != classes[places.back()]);
      const int room = shared_tile_tokens_ - (tile == nullptr ? 0 : tile->tokens);
      if (room == 0 || (reads > 0 && tile != nullptr && cost + reads * READ_COST > TILE_COST)) {
        add_family_steps(*tile);
        close_tile(*tile);
        tile = nullptr;
        continue;
      }
      if (tile == nullptr) {
        tile = &open_tile(plan_.first, span, spans);
        places.clear();
        cost = 0;
      }
      const int count = std::min(room, end - token);
      add_piece(*tile, row, token, count);
      places.push_back(place);
      cost += reads * READ_COST + count * plan_.group() * SPAN_BLOCKS;
      token += count;
    }
  }
  if (tile == nullptr) return;
  add_family_steps(*tile);
  close_tile(*tile);
}

void Builder::add_family_steps(const Tile& tile) {
  add_shared_steps(tile, tile.span);
  const PlanRow& row = plan_.rows[plan_.pieces[tile.first_piece].row];
  for (int block = SPAN_BLOCKS; block < tile.spans * SPAN_BLOCKS; ++block) {
    const int32_t start = block * BLOCK;
    add_step({row.slots + start, start, BLOCK, 0, tile.tokens, false});
  }
}

// Of a span whose classes are known.
void Builder::add_shared_steps(const Tile& tile, int span) {
  const std::vector<int32_t>& places = sharing_.places;
  for (int level = 0; level < SPAN_BLOCKS; ++level) {
    const std::vector<int32_t>& classes = sharing_.classes[level];
    const int32_t start = span * SPAN + level * BLOCK;
    int token = 0;
    for (size_t i = 0; i < places.size();) {
      Step step{0, start, 0, token, token, false};
      const int32_t kind = classes[places[i]];
      for (; i < places.size() && classes[places[i]] == kind; ++i) {
        const Piece& piece = plan_.pieces[tile.first_piece + i];
        const PlanRow& row = plan_.rows[piece.row];
        step.slots = row.slots + start;
        step.count = std::max(step.count, std::min(BLOCK, piece.position + piece.count - start));
        step.end += piece.count;
      }
      token = step.end;
      if (kind >= 0 && step.count > 0) add_step(step);
    }
  }
}

// Decides for each row whether the first phase does the spans that it reads alone. It does not
// where the row's tiles are short beside all the work of the second phase.
void Builder::split_long_rows() {
  const auto cost = [&](const PlanRow& row) {
    const int blocks = std::max(0, row.blocks() - row.alone * SPAN_BLOCKS);
    return static_cast<int64_t>(blocks) * (READ_COST + row_tile_tokens(row) * plan_.group());
  };
  int64_t all = 0;
  for (const PlanRow& row : plan_.rows) all += cost(row) * row_tiles(row) * plan_.kv_heads;
  const int tasks = TASKS_PER_THREAD * plan_.threads;
  for (PlanRow& row : plan_.rows) {
    const bool whole = plan_.threads == 1 || row.spans() == 1 || cost(row) * tasks <= all;
    row.stored = whole ? std::min(row.alone, row.spans()) : row.spans();
  }
}

void Builder::finish_row(PlanRow& row) {
  for (int span = row.alone; span < row.stored; ++span) add_span_tiles(row, span);
  const int size = row_tile_tokens(row);
  for (int done = 0; done < row.query_len; done += size) {
    Tile& tile = open_tile(plan_.second, row.stored);
    add_piece(tile, row, row.first_token + done, std::min(size, row.query_len - done));
    add_row_steps(row, row.stored * SPAN_BLOCKS, row.blocks());
    close_tile(tile);
  }
}

void Builder::add_span_tiles(const PlanRow& row, int span) {
  const int size = row_tile_tokens(row);
  for (int done = std::max(0, span * SPAN - row.position()); done < row.query_len; done += size) {
    Tile& tile = open_tile(plan_.first, span);
    add_piece(tile, row, row.first_token + done, std::min(size, row.query_len - done));
    add_row_steps(row, span * SPAN_BLOCKS, (span + 1) * SPAN_BLOCKS);
    close_tile(tile);
  }
}

// The steps of a tile that is one piece, the last that was added.
void Builder::add_row_steps(const PlanRow& row, int first_block, int end_block) {
  const Piece& piece = plan_.pieces.back();
  const int end_position = piece.position + piece.count;
  for (int block = first_block; block < end_block; ++block) {
    const int start = block * BLOCK;
    if (start >= end_position) return;
    const int begin = std::max(0, start - piece.position);
    const int count = std::min(BLOCK, end_position - start);
    add_step({row.slots + start, start, count, begin, piece.count, false});
  }
}

void Builder::add_step(Step step) {
  const int32_t* slots = plan_.slots.data() + step.slots;
  int32_t others = 0;
  for (int t = 0; t < step.count; ++t) others |= slots[t] - slots[0] - t;
  step.in_line = others == 0;
  plan_.steps.push_back(step);
}

void Builder::reserve_results() {
  int64_t records = 0;
  for (PlanRow& row : plan_.rows) {
    row.results = records;
    records += static_cast<int64_t>(row.stored) * row.query_len * plan_.heads;
  }
  const size_t vectors = static_cast<size_t>(records) * plan_.record_vectors();
  if (plan_.results.size() < vectors) plan_.results.resize(vectors);
}

}  // namespace
}  // namespace phloem

using phloem::AttentionPlan;

extern "C" {

// A plan for a team of so many threads; it keeps its memory from step to step.
AttentionPlan* phloem_plan_create(int32_t threads) { return new AttentionPlan(threads); }

void phloem_plan_destroy(AttentionPlan* plan) { delete plan; }

// Plans a step of `num_rows` rows: row i reads the slots of row_table[rows[i]], whose rows are
// row_stride apart, and owns the last query_lens[i] of its seq_lens[i] positions. The arguments are
// read here and not later.
void phloem_plan_build(AttentionPlan* plan, const int32_t* row_table, int64_t row_stride,
                       const int32_t* rows, const int32_t* query_lens, const int32_t* seq_lens,
                       int32_t num_rows, int32_t heads, int32_t kv_heads, int32_t head_dim,
                       int32_t value_dim, float scale) {
  plan->heads = heads;
  plan->kv_heads = kv_heads;
  plan->head_dim = head_dim;
  plan->value_dim = value_dim;
  plan->scale = scale;
  plan->rows.clear();
  int64_t slots = 0;
  int32_t tokens = 0;
  for (int i = 0; i < num_rows; ++i) {
    plan->rows.push_back({slots, 0, tokens, query_lens[i], seq_lens[i], 0, 1, 0});
    slots += static_cast<int64_t>(plan->rows.back().blocks()) * phloem::BLOCK;
    tokens += query_lens[i];
  }
  if (static_cast<int64_t>(plan->slots.size()) < slots) plan->slots.resize(slots);
  for (int i = 0; i < num_rows; ++i) {
    const phloem::PlanRow& row = plan->rows[i];
    int32_t* to = plan->slots.data() + row.slots;
    std::memcpy(to, row_table + rows[i] * row_stride, row.seq_len * sizeof(int32_t));
    std::fill(to + row.seq_len, to + row.blocks() * phloem::BLOCK, 0);
  }
  phloem::Builder(*plan).build();
}

// The slots of row i, as long as it was planned.
const int32_t* phloem_plan_slots(const AttentionPlan* plan, int32_t i) {
  return plan->slots.data() + plan->rows[i].slots;
}

}  // extern "C"
