#include "attention.h"

#include "attention_plan.h"
#include "attention_scores.h"
#include "elementwise.h"

namespace phloem {
namespace {

// What a token's queries need is asked for so many tokens before: it lies too far apart for
// processors to foresee.
constexpr int AHEAD = 2;

// Running results of a tile's queries: sums of values and of probabilities, relative to 2^most.
struct Running {
  float* most;
  float* sum;
  f32x16* values;
};

// A tile for one head of keys and values; no tile: nothing.
struct Work {
  const Tile* tile = nullptr;
  int head = 0;
};

// Does a tile for one head, in the scratch of the thread.
template <class T>
class TileRun {
 public:
  using Block = typename TileOf<T>::Type;

  // `next` is what this thread will probably do after it.
  static void run(Worker& worker, const AttentionPlan& plan, const phloem_kv_layer& kv,
                  const AttentionInput& io, Work work, Work next, bool first_phase) {
    Arena measure(nullptr);
    TileRun(measure, plan, kv, io, work, next);
    Arena arena(worker.scratch(measure.used()));
    TileRun self(arena, plan, kv, io, work, next);
    self.take_queries();
    if (first_phase)
      self.first();
    else
      self.second();
  }

 private:
  TileRun(Arena& arena, const AttentionPlan& plan, const phloem_kv_layer& kv,
          const AttentionInput& io, Work work, Work next)
      : plan_(plan),
        io_(io),
        tile_(*work.tile),
        next_(next),
        next_keys_((next.head - work.head) * kv.k.head),
        next_values_((next.head - work.head) * kv.v.head),
        group_(plan.group()),
        first_head_(work.head * plan.group()),
        queries_(tile_.tokens * plan.group()),
        vectors_(plan.value_vectors()),
        keys_(kv.k, kv.page_size, work.head),
        values_(kv.v, kv.page_size, work.head),
        block_(arena, most_queries(), plan.head_dim, vectors_),
        positions_(arena.take<int32_t>(most_queries())),
        rotated_(arena.take<float>(plan.head_dim)),
        results_{take(arena), take(arena), take(arena)},
        keep_(take(arena)),
        add_(take(arena)),
        span_(take_running(arena)),
        total_(take_running(arena)) {}

  int most_queries() const { return plan_.most_tokens * group_; }
  float* take(Arena& arena) const { return arena.take<float>(most_queries()); }
  Running take_running(Arena& arena) const {
    float *most = take(arena), *sum = take(arena);
    return {most, sum, arena.take<f32x16>(static_cast<size_t>(most_queries()) * vectors_)};
  }

  const float* query(int token, int h) const {
    return io_.q + token * io_.q_stride + (first_head_ + h) * plan_.head_dim;
  }

  void take_queries() {
    int i = 0;
    for (int p = tile_.first_piece; p < tile_.end_piece; ++p) {
      const Piece& piece = plan_.pieces[p];
      for (int t = 0; t < piece.count; ++t) {
        const int token = piece.token + t;
        if (t + AHEAD < piece.count)
          prefetch(query(token + AHEAD, 0), group_ * plan_.head_dim);
        for (int h = 0; h < group_; ++h, ++i) {
          const float* q = query(token, h);
          if (io_.angles != nullptr) {
            rotate(q, io_.angles + static_cast<int64_t>(token) * plan_.head_dim, plan_.head_dim,
                   rotated_);
            q = rotated_;
          }
          block_.set_query(i, q, plan_.head_dim, plan_.scale);
          positions_[i] = piece.position + t;
        }
      }
    }
  }

  void first() {
    if (tile_.spans == 1) {
      clear(span_);
      for (int s = tile_.first_step; s < tile_.end_step; ++s) step(s);
      return leave(span_);
    }
    clear(total_);
    for (int s = tile_.first_step; s < tile_.end_step;) s = merge_span(s, 0);
    leave(total_);
  }

  void second() {
    const PlanRow& row = plan_.rows[plan_.pieces[tile_.first_piece].row];
    clear(total_);
    int span = 0;
    if (row.merged > 1) {
      take_merged();
      span = row.merged;
    }
    for (; span < tile_.span; ++span) merge_stored(span);
    for (int s = tile_.first_step; s < tile_.end_step;)
      s = merge_span(s, first_query(plan_.steps[s].start / SPAN));
    write();
  }

  // Stores the results of the tile's first span, or of all of them.
  void leave(const Running& results) {
    int i = 0;
    for (int p = tile_.first_piece; p < tile_.end_piece; ++p) {
      const Piece& piece = plan_.pieces[p];
      for (int t = 0; t < piece.count; ++t)
        for (int h = 0; h < group_; ++h, ++i) {
          f32x16* to = record(piece, tile_.span, t, h);
          for (int v = 0; v < vectors_; ++v) store(to + v, results.values[i * vectors_ + v]);
          float* ends = reinterpret_cast<float*>(to + vectors_);
          ends[0] = results.most[i];
          ends[1] = results.sum[i];
        }
    }
  }

  // Does the steps of a span from step s on and merges its results, those of the queries from
  // `begin` on, into the total; returns the step behind them.
  int merge_span(int s, int begin) {
    const int span = plan_.steps[s].start / SPAN;
    clear(span_);
    for (; s < tile_.end_step && plan_.steps[s].start / SPAN == span; ++s) step(s);
    merge({begin, queries_}, span_.most, span_.sum,
          [this](int i) { return span_.values + static_cast<size_t>(i) * vectors_; });
    return s;
  }

  // The record of head h at the t-th token of a piece.
  f32x16* record(const Piece& piece, int span, int t, int h) const {
    return plan_.record(plan_.rows[piece.row], span, piece.token + t) +
           static_cast<int64_t>(first_head_ + h) * plan_.record_vectors();
  }

  // Of a tile that is one piece: the record of its i-th query.
  const f32x16* record_of(int span, int i) const {
    return record(plan_.pieces[tile_.first_piece], span, i / group_, i % group_);
  }

  // The same where all are read in turn: asks for one of those that follow.
  const f32x16* stored(int span, int i) const {
    if (i + AHEAD * group_ < queries_)
      prefetch(reinterpret_cast<const float*>(record_of(span, i + AHEAD * group_)),
               plan_.record_vectors() * LANES);
    return record_of(span, i);
  }

  // Of a tile that is one piece: the first query that reads the span.
  int first_query(int span) const {
    return std::max(0, span * SPAN - plan_.pieces[tile_.first_piece].position) * group_;
  }

  void clear(const Running& running) {
    std::fill(running.most, running.most + queries_, -INFINITY);
    std::fill(running.sum, running.sum + queries_, 0.0f);
    std::fill(running.values, running.values + static_cast<size_t>(queries_) * vectors_, f32x16{});
  }

  void step(int index) {
    const Step& step = plan_.steps[index];
    BlockSlots slots{slots_of(step), {}};
    if (index + 1 < tile_.end_step)
      slots.next = slots_of(plan_.steps[index + 1]);
    else if (next_.tile != nullptr && next_.tile->first_step < next_.tile->end_step) {
      slots.next = slots_of(plan_.steps[next_.tile->first_step]);
      slots.next_keys = next_keys_;
      slots.next_values = next_values_;
    }
    const QueryRange range{step.begin * group_, step.end * group_};
    block_.read(keys_, values_, plan_.head_dim, plan_.value_dim, slots, range.end - range.begin);
    block_.weigh(range, positions_, step.start, step.count, results_);
    balance(range, span_, results_.most, results_.sum);
    for (int i = range.begin; i < range.end; ++i) add_[i] *= results_.unit[i];
    block_.accumulate(range, step.count, span_.values, keep_, add_);
  }

  SlotRun slots_of(const Step& step) const {
    return {plan_.slots.data() + step.slots, step.count, step.in_line};
  }

  // Adds sums of probabilities relative to 2^most to running ones; leaves in keep_ and add_ what
  // running and added values are to be multiplied by.
  void balance(QueryRange range, const Running& running, const float* most, const float* sum) {
    for (int i = range.begin; i < range.end; i += LANES) {
      const int n = std::min(LANES, range.end - i);
      const f32x16 before = load_some(running.most + i, n), other = load_some(most + i, n);
      const f32x16 after = max(before, other);
      const f32x16 keep = exp2_to_1(before - after), add = exp2_to_1(other - after);
      store_some(keep_ + i, keep, n);
      store_some(add_ + i, add, n);
      store_some(running.most + i, after, n);
      const f32x16 added = load_some(sum + i, n) * add;
      store_some(running.sum + i, fma(load_some(running.sum + i, n), keep, added), n);
    }
  }

  // Begins with what the first phase merged.
  void take_merged() {
    for (int i = 0; i < queries_; ++i) {
      const f32x16* from = stored(0, i);
      for (int v = 0; v < vectors_; ++v) total_.values[i * vectors_ + v] = load<f32x16>(from + v);
      const float* ends = reinterpret_cast<const float*>(from + vectors_);
      total_.most[i] = ends[0];
      total_.sum[i] = ends[1];
    }
  }

  void merge_stored(int span) {
    const int begin = first_query(span);
    for (int i = begin; i < queries_; ++i) {
      const float* ends = reinterpret_cast<const float*>(stored(span, i) + vectors_);
      results_.most[i] = ends[0];
      results_.sum[i] = ends[1];
    }
    merge({begin, queries_}, results_.most, results_.sum,
          [this, span](int i) { return record_of(span, i); });
  }

  // Merges the results of a span into the total; values_of(i) are those of query i.
  template <class Values>
  void merge(QueryRange range, const float* most, const float* sum, Values values_of) {
    balance(range, total_, most, sum);
    for (int i = range.begin; i < range.end; ++i) {
      const f32x16* added = values_of(i);
      f32x16* to = total_.values + static_cast<size_t>(i) * vectors_;
      for (int v = 0; v < vectors_; ++v)
        to[v] = fma(load<f32x16>(added + v), splat(add_[i]), to[v] * splat(keep_[i]));
    }
  }

  void write() {
    const Piece& piece = plan_.pieces[tile_.first_piece];
    for (int i = 0; i < queries_; ++i) {
      const int64_t head = first_head_ + i % group_;
      float* out = io_.out + (piece.token + i / group_) * io_.out_stride + head * plan_.value_dim;
      const f32x16* values = total_.values + static_cast<size_t>(i) * vectors_;
      for (int v = 0; v < vectors_; ++v)
        store_some(out + v * LANES, values[v] / splat(total_.sum[i]),
                   std::min(LANES, plan_.value_dim - v * LANES));
    }
  }

  const AttentionPlan& plan_;
  const AttentionInput& io_;
  const Tile& tile_;
  const Work next_;
  const int64_t next_keys_, next_values_;  // from this head's keys and values to the next one's
  const int group_, first_head_, queries_, vectors_;
  const Slots<T> keys_, values_;
  Block block_;
  int32_t* const positions_;
  float* const rotated_;
  const BlockResults results_;
  float* const keep_;
  float* const add_;
  const Running span_, total_;
};

template <class T>
void attend_to(Worker& worker, const AttentionPlan& plan, const phloem_kv_layer& kv,
               const AttentionInput& io) {
  const size_t heads = plan.kv_heads, size = worker.team_size();
  const auto work = [heads](const std::vector<Tile>& tiles, size_t i) {
    return i < tiles.size() * heads ? Work{&tiles[i / heads], static_cast<int>(i % heads)} : Work{};
  };
  for (const std::vector<Tile>* tiles : {&plan.first, &plan.second})
    worker.each(tiles->size() * heads, [&](size_t i) {
      TileRun<T>::run(worker, plan, kv, io, work(*tiles, i), work(*tiles, i + size),
                      tiles == &plan.first);
    });
}

}  // namespace

void attend(Worker& worker, const AttentionPlan& plan, const phloem_kv_layer& kv,
            const AttentionInput& io) {
  switch (kv.dtype) {
    case PHLOEM_KV_F32: return attend_to<float>(worker, plan, kv, io);
    case PHLOEM_KV_BF16: return attend_to<uint16_t>(worker, plan, kv, io);
    case PHLOEM_KV_I8: return attend_to<int8_t>(worker, plan, kv, io);
  }
}

}  // namespace phloem

extern "C" {

// Attends to one layer with the planned tokens: q [T, heads, head_dim] and out [T, heads,
// value_dim], each with a stride from token to token.
void phloem_attend(phloem::Team* team, const phloem::AttentionPlan* plan, const phloem_kv_layer* kv,
                   const float* q, int64_t q_stride, float* out, int64_t out_stride) {
  const phloem::AttentionInput io{q, q_stride, out, out_stride};
  team->run([&](phloem::Worker& worker) { phloem::attend(worker, *plan, *kv, io); });
}

}  // extern "C"
