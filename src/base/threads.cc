#include "base/threads.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <condition_variable>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <mutex>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/integer.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace halftone {
namespace {

int affinity_count() {
  // The mask of a host with more than 1024 processors does not fit cpu_set_t: ask with growing sizes.
  for (int cpus = 1024; cpus <= 1 << 20; cpus *= 4) {
    cpu_set_t* set = CPU_ALLOC(cpus);
    const std::size_t bytes = CPU_ALLOC_SIZE(cpus);
    const bool known = sched_getaffinity(0, bytes, set) == 0;
    const int count = known ? CPU_COUNT_S(bytes, set) : 0;
    CPU_FREE(set);
    if (known) return std::max(count, 1);
  }
  return static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
}

std::string first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

// Processors' worth of time that a cgroup and its parents allow; 0 if unlimited or unknown.
double cgroup_quota() {
  double quota = 0;
  const auto lower = [&quota](double value) {
    if (value > 0 && (quota == 0 || value < quota)) quota = value;
  };
  std::ifstream groups("/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    const std::size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    std::string path = line.substr(second + 1);
    const bool v2 = line.starts_with("0::");
    if (!v2 && controllers.find("cpu") == std::string::npos) continue;
    for (;;) {
      if (v2) {
        std::istringstream cpu_max(first_line("/sys/fs/cgroup" + path + "/cpu.max"));
        std::string max;
        double period = 0;
        if (cpu_max >> max >> period && max != "max" && period > 0) lower(std::strtod(max.c_str(), nullptr) / period);
      } else {
        const std::string base = "/sys/fs/cgroup/cpu" + path;
        const double us = std::strtod(first_line(base + "/cpu.cfs_quota_us").c_str(), nullptr);
        const double period = std::strtod(first_line(base + "/cpu.cfs_period_us").c_str(), nullptr);
        if (us > 0 && period > 0) lower(us / period);
      }
      if (path.empty() || path == "/") break;
      path.erase(path.find_last_of('/'));
    }
  }
  return quota;
}

inline void relax() {
#if defined(__x86_64__)
  _mm_pause();
#endif
}

}  // namespace

ThreadBudget thread_budget() {
  ThreadBudget budget;
  const int host = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
  const int affinity = affinity_count();
  const double quota = cgroup_quota();
  budget.threads = affinity;
  budget.reason = affinity < host ? fmt::format("{} of {} processors by affinity", affinity, host)
                                  : fmt::format("all {} processors", affinity);
  if (quota > 0 && quota < affinity) {
    budget.threads = std::max(1, static_cast<int>(std::floor(quota)));
    budget.reason = fmt::format("{} of {} processors: cgroup quota {:.2f}", budget.threads, affinity, quota);
  }
  return budget;
}

// About 100 microseconds of pauses: longer than the serial work between the products of a layer, shorter than anything
// that a person could notice as a busy processor.
constexpr int kSpins = 5000;

// A run is published by a new generation number; workers spin for a moment (a layer's products follow one another in
// microseconds), then sleep. With more threads than processors nobody spins.
struct ThreadPool::State {
  int size = 1;
  int spins = 0;
  std::vector<std::thread> workers;

  std::mutex mutex;
  std::condition_variable wake;
  std::condition_variable finished;
  std::atomic<std::uint64_t> generation{0};
  std::atomic<bool> stop{false};
  // Raised before a sleeper looks once more at what it waits for, read after the other side has changed that (both
  // sequentially consistent): so nobody takes the mutex while all are awake, and nobody sleeps through a change.
  std::atomic<int> sleepers{0};
  std::atomic<bool> caller_sleeps{false};

  const std::function<void(std::int64_t, int)>* body = nullptr;
  std::int64_t tasks = 0;
  std::atomic<std::int64_t> next{0};
  std::atomic<int> active{0};  // started threads that have not finished this generation
  std::exception_ptr error;    // guarded by mutex
  std::mutex run_mutex;        // one run at a time

  void work(int worker);
  void loop(int worker);
};

namespace {
thread_local int current_worker = -1;  // >= 0 inside a task
}

void ThreadPool::State::work(int worker) {
  const int outer = current_worker;
  current_worker = worker;
  for (;;) {
    const std::int64_t task = next.fetch_add(1, std::memory_order_relaxed);
    if (task >= tasks) break;
    try {
      (*body)(task, worker);
    } catch (...) {
      const std::lock_guard lock(mutex);
      if (!error) error = std::current_exception();
      next.store(tasks, std::memory_order_relaxed);
    }
  }
  current_worker = outer;
}

void ThreadPool::State::loop(int worker) {
  std::uint64_t seen = 0;
  for (;;) {
    int spin = 0;
    while (generation.load(std::memory_order_acquire) == seen && spin++ < spins) relax();
    if (generation.load(std::memory_order_acquire) == seen) {
      std::unique_lock lock(mutex);
      sleepers.fetch_add(1);
      wake.wait(lock, [&] { return generation.load() != seen; });
      sleepers.fetch_sub(1);
    }
    seen = generation.load(std::memory_order_acquire);
    if (stop.load()) return;
    work(worker);
    if (active.fetch_sub(1) == 1 && caller_sleeps.load()) {
      const std::lock_guard lock(mutex);
      finished.notify_one();
    }
  }
}

ThreadPool::ThreadPool(int threads) : state_(std::make_unique<State>()) {
  if (threads < 1 || threads > 4096) fail(ErrorKind::usage, "threads: expected 1 to 4096, not {}", threads);
  state_->size = threads;
  state_->spins = threads <= thread_budget().threads ? kSpins : 0;
  for (int worker = 1; worker < threads; ++worker) {
    state_->workers.emplace_back([this, worker] { state_->loop(worker); });
  }
}

ThreadPool::~ThreadPool() {
  state_->stop = true;
  {
    const std::lock_guard lock(state_->mutex);
    state_->generation.fetch_add(1, std::memory_order_release);
  }
  state_->wake.notify_all();
  for (std::thread& worker : state_->workers) worker.join();
}

int ThreadPool::size() const { return state_->size; }

void ThreadPool::run(std::int64_t tasks, const std::function<void(std::int64_t, int)>& body) {
  if (tasks <= 0) return;
  if (current_worker >= 0 || state_->size == 1 || tasks == 1) {
    const int worker = std::max(current_worker, 0), outer = current_worker;
    current_worker = worker;
    try {
      for (std::int64_t task = 0; task < tasks; ++task) body(task, worker);
    } catch (...) {
      current_worker = outer;
      throw;
    }
    current_worker = outer;
    return;
  }
  State& s = *state_;
  const std::lock_guard one_run(s.run_mutex);
  s.body = &body;
  s.tasks = tasks;
  s.error = nullptr;
  s.next.store(0, std::memory_order_relaxed);
  s.active.store(s.size - 1, std::memory_order_relaxed);
  s.generation.fetch_add(1);
  if (s.sleepers.load() > 0) {
    const std::lock_guard lock(s.mutex);
    s.wake.notify_all();
  }
  s.work(0);
  int spin = 0;
  while (s.active.load(std::memory_order_acquire) != 0 && spin++ < s.spins) relax();
  if (s.active.load(std::memory_order_acquire) != 0) {
    std::unique_lock lock(s.mutex);
    s.caller_sleeps = true;
    s.finished.wait(lock, [&] { return s.active.load() == 0; });
    s.caller_sleeps = false;
  }
  if (s.error) std::rethrow_exception(s.error);
}

void ThreadPool::run_ranges(std::int64_t n, std::int64_t grain,
                            const std::function<void(std::int64_t, std::int64_t, int)>& body) {
  if (n <= 0) return;
  const std::int64_t grains = ceil_div(n, grain);
  const std::int64_t chunks = std::min<std::int64_t>(grains, size());
  run(chunks, [&](std::int64_t chunk, int worker) {
    const std::int64_t begin = grains * chunk / chunks * grain;
    const std::int64_t end = std::min(n, grains * (chunk + 1) / chunks * grain);
    body(begin, end, worker);
  });
}

namespace {
std::unique_ptr<ThreadPool>& pool_slot() {
  static std::unique_ptr<ThreadPool> pool;
  return pool;
}
std::mutex& pool_mutex() {
  static std::mutex mutex;
  return mutex;
}
}  // namespace

ThreadPool& default_pool() {
  const std::lock_guard lock(pool_mutex());
  if (!pool_slot()) pool_slot() = std::make_unique<ThreadPool>(thread_budget().threads);
  return *pool_slot();
}

void set_default_threads(int threads) {
  const std::lock_guard lock(pool_mutex());
  pool_slot() = std::make_unique<ThreadPool>(threads == 0 ? thread_budget().threads : threads);
}

}  // namespace halftone
