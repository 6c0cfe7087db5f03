#pragma once

// How far a run has come: on a terminal one line that is rewritten, elsewhere at
// most some fifty plain lines.
//
//   tutti::Progress progress(trainer.steps(), steps);
//   … if (job.rank() == 0) progress.show(result.step, fmt::format("loss {:.4f}", result.loss));
//
//   step 120/200  loss 1.9312  14.2 steps/s  6 s left
//
// Threads: one. Failure: none.

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string_view>

namespace tutti {

class Progress {
 public:
  struct Options {
    bool quiet = false;       ///< shows nothing
    std::FILE* to = nullptr;  ///< stdout if null
    std::int64_t lines =
        50;  ///< at most so many, and one more for the last step; not on a terminal
  };
  /// Reports on a run of which `done` steps are over and that ends with step `total`.
  Progress(std::int64_t done, std::int64_t total) : Progress(done, total, Options()) {}
  Progress(std::int64_t done, std::int64_t total, const Options& options);

  /// After step `step`. The speed is that since this object was made.
  void show(std::int64_t step, std::string_view figures);

 private:
  std::int64_t first_;
  std::int64_t total_;
  std::int64_t every_;
  bool quiet_;
  std::FILE* to_;
  bool terminal_;
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

}  // namespace tutti
