#pragma once

// Curves and histograms for TensorBoard (https://www.tensorflow.org/tensorboard), written without
// Python: `tensorboard --logdir runs` shows them.
//
//   tutti::TensorBoard board(job, "runs/first");
//   …
//   board.scalar("loss", parallel.mean(loss), step);
//   board.histogram("weights/0", model->parameters()[0], step);
//
// A Trainer writes curves of its own (TrainerOptions::tensorboard), into the same file where the
// directory is the same.
//
// Threads: one at a time for each object. Failure: InvalidArgument for a name that is not UTF-8;
// what cannot be written (a full disk) is missed, with one warning.

#include <torch/torch.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "tutti/group.h"
#include "tutti/job.h"
#include "tutti/metrics.h"

namespace tutti {

class EventFile;

class TensorBoard {
 public:
  /// The directory is made with the folders above it, and the first value begins a file there; the
  /// job's first worker writes, calls of all others do nothing. A run of which `done` steps are
  /// over takes back what was written there of later ones, of 0 what is in older files; to be given
  /// once in a run, and not beside a Trainer, which does that by itself. Without a number nothing
  /// is taken back. InvalidArgument for a negative number. IoError where the directory cannot be
  /// made.
  TensorBoard(const Job& job, const std::string& directory, std::optional<std::int64_t> done = {});
  /// The same for a group's first worker.
  TensorBoard(const Group& group, const std::string& directory,
              std::optional<std::int64_t> done = {});

  /// A point of a curve. Slashes in names make groups of curves. As float32.
  void scalar(std::string_view name, double value, std::int64_t step);
  /// All metrics that are numbers: the curves "NAME/METRIC". Gathered ones are not.
  void metrics(std::string_view name, const Metrics& metrics, std::int64_t step);
  /// How values of a tensor of any type but the complex ones (InvalidArgument), any layout and
  /// device are distributed, without those that are not finite; with none that is, nothing. The
  /// calling thread waits for a tensor on a device.
  void histogram(std::string_view name, const torch::Tensor& values, std::int64_t step);

 private:
  TensorBoard(bool writes, const std::string& directory, std::optional<std::int64_t> done);
  template <class Write>
  void write(const Write& write);

  std::shared_ptr<EventFile> file_;  ///< null where another worker writes
  bool failed_ = false;              ///< in the last write
};

}  // namespace tutti
