// A team of threads that runs one function together: the only threads in this library.
//
// Owns the handing out of tasks and how long a thread waits awake. A function is a sequence of
// phases, and a phase is over when its tasks are done, not when all threads have come by: a thread
// whose core was taken away holds the others up only by a task it is in the middle of, and finds
// its way to the current phase when it comes back. So who computes a task must not matter.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <thread>
#include <type_traits>
#include <vector>

namespace phloem {

class Team;

// One thread's view of the team, while a function runs.
class Worker {
 public:
  // One phase: calls task(i) once for each i below `count`, here or in another thread, and returns
  // when all are done and what they wrote is seen. Every worker must come here with the same count;
  // what a function does outside of tasks, each thread does for itself, at any time.
  template <class Task>
  void each(size_t count, Task task) {
    if (count == 0) return;
    for (size_t i; take(count, i); finish(count)) task(i);
    leave();
  }

  // Which thread this is, 0 to size - 1; 0 called `run`.
  int index() const { return index_; }
  int team_size() const;

  // At least `bytes` of memory for this thread alone, aligned to a cache line. Each call gives the
  // same memory again: it serves one task, and a task calls it once.
  void* scratch(size_t bytes);

 private:
  friend class Team;
  Worker(Team& team, int index, uint32_t phase) : team_(team), index_(index), phase_(phase) {}
  bool take(size_t count, size_t& i);
  void finish(size_t count);
  void leave();

  Team& team_;
  const int index_;
  uint32_t phase_;
};

class Team {
 public:
  // `size` threads, the caller of `run` among them; at least 1. Throws if the system does not give
  // them all, and leaves none behind.
  explicit Team(int size);
  ~Team();
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  // Calls body(worker) here and in every thread that is awake in time; returns when its phases are
  // over and no thread is in it. A second caller waits.
  template <class Body>
  void run(Body&& body) {
    run([](void* b, Worker& w) { (*static_cast<std::remove_reference_t<Body>*>(b))(w); }, &body);
  }

  int size() const { return static_cast<int>(scratch_.size()); }

 private:
  friend class Worker;
  using Function = void (*)(void* body, Worker& worker);

  struct Scratch {
    void* memory = nullptr;
    size_t bytes = 0;
  };

  void run(Function function, void* body);
  void work(int index);
  void stop();
  void await_change(std::atomic<uint32_t>& value, uint32_t old);
  void wake(std::atomic<uint32_t>& value);

  std::mutex caller_;
  Function function_ = nullptr;
  void* body_ = nullptr;
  uint32_t first_phase_ = 0;
  std::atomic<bool> open_{false};
  std::atomic<bool> stopping_{false};
  // Each on a cache line of its own, because some are written while others are waited for.
  alignas(64) std::atomic<uint32_t> runs_{0};
  alignas(64) std::atomic<uint32_t> inside_{0};
  alignas(64) std::atomic<uint32_t> phase_{0};
  // The phase in the upper half, the next task of it in the lower one.
  alignas(64) std::atomic<uint64_t> ticket_{0};
  alignas(64) std::atomic<uint32_t> done_{0};
  alignas(64) std::atomic<uint32_t> sleepers_{0};
  std::vector<Scratch> scratch_;
  std::vector<std::thread> threads_;
};

}  // namespace phloem
