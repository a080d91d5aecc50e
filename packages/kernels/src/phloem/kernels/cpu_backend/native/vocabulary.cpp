#include "vocabulary.h"

#include <algorithm>
#include <cfloat>
#include <functional>

namespace phloem {
namespace {

typedef float f32x8 __attribute__((vector_size(32)));
typedef double f64x8 __attribute__((vector_size(64)));

constexpr size_t LINE = 64;

size_t aligned(size_t bytes) { return (bytes + LINE - 1) / LINE * LINE; }

// Parts of the workspace, one row after the other in each.
struct Layout {
  size_t maxima, zeros, sums, counts, values, ids, scalars;

  Layout(int spans, int tasks)
      : maxima(aligned(sizeof(float) * LANES * spans)),
        zeros(aligned(sizeof(float) * spans)),
        sums(aligned(sizeof(double) * spans)),
        counts(aligned(sizeof(int32_t) * tasks)),
        values(aligned(sizeof(float) * SPAN * spans)),
        ids(aligned(sizeof(int32_t) * SPAN * spans)),
        scalars(LINE) {}
  size_t row() const { return maxima + zeros + sums + counts + values + ids + scalars; }
};

bool any(i32x16 mask) {
#if PHLOEM_AVX512
  return _mm512_movepi32_mask((__m512i)mask) != 0;
#elif PHLOEM_AVX2
  __m256i half[2];
  std::memcpy(half, &mask, sizeof half);
  return !_mm256_testz_si256(_mm256_or_si256(half[0], half[1]), _mm256_set1_epi32(-1));
#else
  int64_t words[8], all = 0;
  std::memcpy(words, &mask, sizeof words);
  for (int64_t word : words) all |= word;
  return all != 0;
#endif
}

// The first n (1 to 16) elements, -infinity behind them.
[[gnu::always_inline]] inline f32x16 load_padded(const float* p, int n) {
  if (n >= LANES) return load(p);
  f32x16 v = splat(-INFINITY);
  std::memcpy(&v, p, n * sizeof(float));
  return v;
}

// A sum of vectors in float64, lane by lane, and then of lanes in a fixed order. In float32 the
// tail of a large vocabulary would be rounded away.
struct LaneSums {
  f64x8 halves[2]{};

  void add(f32x16 v) {
    f32x8 x[2];
    std::memcpy(x, &v, sizeof x);
    for (int h = 0; h < 2; ++h) halves[h] += __builtin_convertvector(x[h], f64x8);
  }
  double total() const {
    double x[8];
    store(x, halves[0] + halves[1]);
    for (int half = 4; half > 0; half /= 2)
      for (int i = 0; i < half; ++i) x[i] += x[i + half];
    return x[0];
  }
};

// Calls visit(s) for the spans of a task.
template <class Visit>
void each_span(const Logits& logits, int task, Visit visit) {
  const int last = std::min(logits.spans(), (task + 1) * TASK_SPANS);
  for (int s = task * TASK_SPANS; s < last; ++s) visit(s);
}

}  // namespace

Candidates RowNotes::gather(const Logits& logits) const {
  Candidates all = {found.values, found.ids, 0};
  for (int task = 0; task < logits.tasks(); ++task) {
    const size_t start = static_cast<size_t>(task) * TASK_SPANS * SPAN;
    std::memmove(all.values + all.count, found.values + start, sizeof(float) * counts[task]);
    std::memmove(all.ids + all.count, found.ids + start, sizeof(int32_t) * counts[task]);
    all.count += counts[task];
  }
  return all;
}

double RowNotes::total(const Logits& logits) const {
  double total = 0;
  for (int s = 0; s < logits.spans(); ++s) total += sums[s];
  return total;
}

size_t Workspace::bytes(int rows, int vocab) {
  const Logits logits = {nullptr, 0, std::min(rows, ROWS_AT_ONCE), vocab};
  return logits.rows * Layout(logits.spans(), logits.tasks()).row() + LINE;
}

RowNotes Workspace::row(const Logits& logits, int r) const {
  const Layout layout(logits.spans(), logits.tasks());
  char* p = reinterpret_cast<char*>(aligned(reinterpret_cast<size_t>(memory))) + r * layout.row();
  const auto take = [&p](size_t bytes) {
    char* taken = p;
    p += bytes;
    return static_cast<void*>(taken);
  };
  RowNotes notes;
  notes.maxima = static_cast<float*>(take(layout.maxima));
  notes.zeros = static_cast<float*>(take(layout.zeros));
  notes.sums = static_cast<double*>(take(layout.sums));
  notes.counts = static_cast<int32_t*>(take(layout.counts));
  notes.found.values = static_cast<float*>(take(layout.values));
  notes.found.ids = static_cast<int32_t*>(take(layout.ids));
  notes.found.count = 0;
  notes.max = static_cast<float*>(take(layout.scalars));
  notes.bound = notes.max + 1;
  return notes;
}

Weigher::Weigher(float max, float temperature, float least)
    : max(max), inverse_temperature(std::min(1.0f / temperature, FLT_MAX)), least(least) {}

void Weigher::operator()(const float* x, int n, float* weights) const {
  for (int i = 0; i < n; i += LANES) store(weights + i, (*this)(load_padded(x + i, n - i)));
}

float take_maxima(const float* x, int n, float* maxima) {
  // Several of each, so that one does not wait for the last.
  f32x16 most[4], zeros[4]{};
  for (f32x16& m : most) m = splat(-INFINITY);
  int i = 0;
  for (; i + 4 * LANES <= n; i += 4 * LANES)
    for (int j = 0; j < 4; ++j) {
      const f32x16 v = load(x + i + j * LANES);
      most[j] = max(v, most[j]);
      zeros[j] += v * 0.0f;
    }
  for (; i < n; i += LANES) {
    const int rest = std::min(n - i, LANES);
    most[0] = max(load_padded(x + i, rest), most[0]);
    zeros[0] += load_some(x + i, rest) * 0.0f;
  }
  store(maxima, max(max(most[0], most[1]), max(most[2], most[3])));
  return sum((zeros[0] + zeros[1]) + (zeros[2] + zeros[3]));
}

void note_maxima(const Logits& logits, int r, int task, const RowNotes& notes) {
  each_span(logits, task, [&](int s) {
    notes.zeros[s] = take_maxima(logits.row(r) + s * SPAN, logits.span_size(s),
                                 notes.maxima + s * LANES);
  });
}

void note_sums(const Logits& logits, int r, int task, const Weigher& weigh, const RowNotes& notes) {
  each_span(logits, task, [&](int s) {
    const float* x = logits.row(r) + s * SPAN;
    const int n = logits.span_size(s);
    LaneSums sums;
    int i = 0;
    for (; i + LANES <= n; i += LANES) sums.add(weigh(load(x + i)));
    if (i < n) sums.add(weigh(load_padded(x + i, n - i)));
    notes.sums[s] = sums.total();
  });
}

void note_candidates(const Logits& logits, int r, int task, float bound, const RowNotes& notes) {
  const int start = task * TASK_SPANS * SPAN;
  float* values = notes.found.values + start;
  int32_t* ids = notes.found.ids + start;
  int count = 0;
  const float* x = logits.row(r);
  const int end = std::min(logits.vocab, start + TASK_SPANS * SPAN);
  for (int first = start; first < end; first += LANES) {
    const int n = std::min(end - first, LANES);
    if (!any(load_padded(x + first, n) >= bound)) continue;
    for (int i = first; i < first + n; ++i) {
      values[count] = x[i];
      ids[count] = i;
      count += x[i] >= bound;
    }
  }
  notes.counts[task] = count;
}

float largest(const Logits& logits, const RowNotes& notes) {
  f32x16 most = splat(-INFINITY);
  for (int s = 0; s < logits.spans(); ++s) most = max(load(notes.maxima + s * LANES), most);
  return max_lane(most);
}

float bound_of_largest(const Logits& logits, const RowNotes& notes, int count, float* memory) {
  const int maxima = logits.spans() * LANES;
  if (count > maxima) return -INFINITY;
  std::copy(notes.maxima, notes.maxima + maxima, memory);
  std::nth_element(memory, memory + count - 1, memory + maxima, std::greater<float>());
  return memory[count - 1];
}

double sum_of(const float* weights, int n) {
  LaneSums sums;
  for (int i = 0; i < n; i += LANES) sums.add(load(weights + i));
  return sums.total();
}

}  // namespace phloem
