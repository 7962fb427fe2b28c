// A pool of threads sized by what the process may use (cgroup quota, affinity), never by the host's cores.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace halftone {

struct ThreadBudget {
  int threads = 1;
  std::string reason;  // e.g. "2 of 16 processors: cgroup quota 2.0"
};

// min(affinity mask, cgroup v1/v2 quota rounded down but at least 1).
ThreadBudget thread_budget();

class ThreadPool {
 public:
  explicit ThreadPool(int threads);  // the calling thread is worker 0; threads-1 are started
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int size() const;

  // Calls body(task, worker) once for each task in [0, tasks), worker in [0, size()), and returns when all are done.
  // Which worker runs a task is not fixed: a task must own what it writes, so that results do not depend on it.
  // The first exception of a task is rethrown here. A call from inside a task runs serially on that worker.
  void run(std::int64_t tasks, const std::function<void(std::int64_t task, int worker)>& body);

  // Splits [0, n) into chunks whose bounds are multiples of `grain` (the last one may be short), about one a worker.
  void run_ranges(std::int64_t n, std::int64_t grain,
                  const std::function<void(std::int64_t begin, std::int64_t end, int worker)>& body);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// The process's pool. set_default_threads (0 = thread_budget()) replaces it and must not race with a run.
ThreadPool& default_pool();
void set_default_threads(int threads);

}  // namespace halftone
