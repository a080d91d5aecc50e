#include "team.h"

#include <cstdlib>
#include <new>

namespace phloem {
namespace {

// About 20 microseconds: longer than a gap between two tasks of a step, shorter than the time slice
// of a process that waits for this core.
constexpr int SPINS = 600;
constexpr size_t LINE = 64;

inline void pause() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("isb");
#endif
}

}  // namespace

int Worker::team_size() const { return team_.size(); }

bool Worker::take(size_t count, size_t& i) {
  uint64_t ticket = team_.ticket_.load(std::memory_order_acquire);
  // A ticket of another phase is a later one: this phase is over.
  while (static_cast<uint32_t>(ticket >> 32) == phase_) {
    i = static_cast<uint32_t>(ticket);
    if (i >= count) return false;
    if (team_.ticket_.compare_exchange_weak(ticket, ticket + 1, std::memory_order_acq_rel))
      return true;
  }
  return false;
}

void Worker::finish(size_t count) {
  Team& t = team_;
  if (t.done_.fetch_add(1, std::memory_order_acq_rel) + 1 < count) return;
  const uint32_t next = phase_ + 1;
  t.done_.store(0, std::memory_order_relaxed);
  t.ticket_.store(static_cast<uint64_t>(next) << 32, std::memory_order_release);
  t.phase_.store(next, std::memory_order_seq_cst);
  t.wake(t.phase_);
}

void Worker::leave() { team_.await_change(team_.phase_, phase_++); }

void* Worker::scratch(size_t bytes) {
  Team::Scratch& s = team_.scratch_[index_];
  if (s.bytes < bytes) {
    std::free(s.memory);
    s.bytes = (bytes + LINE - 1) / LINE * LINE;
    s.memory = std::aligned_alloc(LINE, s.bytes);
    if (s.memory == nullptr) throw std::bad_alloc();
  }
  return s.memory;
}

Team::Team(int size) : scratch_(size) {
  try {
    for (int i = 1; i < size; ++i) threads_.emplace_back([this, i] { work(i); });
  } catch (...) {
    stop();
    throw;
  }
}

Team::~Team() {
  stop();
  for (Scratch& s : scratch_) std::free(s.memory);
}

void Team::stop() {
  stopping_.store(true);
  runs_.fetch_add(1);
  wake(runs_);
  for (std::thread& thread : threads_) thread.join();
}

void Team::run(Function function, void* body) {
  const std::lock_guard<std::mutex> one_caller(caller_);
  function_ = function;
  body_ = body;
  first_phase_ = phase_.load();
  open_.store(true);
  runs_.fetch_add(1);
  wake(runs_);
  Worker worker(*this, 0, first_phase_);
  function(body, worker);
  open_.store(false);
  for (uint32_t inside = inside_.load(); inside != 0; inside = inside_.load())
    await_change(inside_, inside);
}

void Team::work(int index) {
  for (uint32_t seen = 0; !stopping_.load();) {
    await_change(runs_, seen);
    seen = runs_.load();
    // First inside, then the look whether it is open: `run` does the reverse, so either it sees
    // this thread and waits for it, or this thread sees that it is over.
    inside_.fetch_add(1);
    if (open_.load()) {
      Worker worker(*this, index, first_phase_);
      function_(body_, worker);
    }
    inside_.fetch_sub(1);
    wake(inside_);
  }
}

void Team::await_change(std::atomic<uint32_t>& value, uint32_t old) {
  for (int i = 0; i < SPINS; ++i) {
    if (value.load(std::memory_order_acquire) != old) return;
    pause();
  }
  sleepers_.fetch_add(1);
  while (value.load() == old) value.wait(old);
  sleepers_.fetch_sub(1);
}

void Team::wake(std::atomic<uint32_t>& value) {
  if (sleepers_.load() > 0) value.notify_all();
}

}  // namespace phloem
