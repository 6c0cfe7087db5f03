#pragma once

// The state behind a DataParallel with an averaging policy. Every worker trains the program's model
// by itself; where a group of parameters is due, copies become one:
//
//   values ← mean over all workers, along the tree over ranks ← AveragingPolicy::combine(), on
//   every worker
//
// Only parameters take part that on some worker are not what they were when they were last due:
// they are told by their bytes, because whoever moved them is the program's own.
//
// Threads: one. Failure: that of a Group's collectives. Diverged on all workers where a value
// is not finite; InvalidArgument where one worker's model has changed (PeerFailed on the others):
// no copies became one, and the next average_parameters() works. An error while they become one is
// Mismatch on all, and ends this object.

#include <torch/torch.h>

#include <cstdint>
#include <exception>
#include <optional>
#include <string>
#include <vector>

#include "sync/averaging/policy_call.h"
#include "sync/plan/fusion.h"
#include "sync/plan/plan.h"
#include "sync/step/traffic_count.h"
#include "torch/model/wrapped_model.h"
#include "tutti/data_parallel.h"

namespace tutti {

class ParallelAveraging {
 public:
  /// Collective. `model` must outlive this.
  ParallelAveraging(const Group& group, WrappedModel model, const DataParallelOptions& options);
  /// Warns where parameters were never averaged.
  ~ParallelAveraging();

  void average_parameters(std::optional<std::int64_t> step);
  void sync_buffers();

  std::vector<std::string> touched() const;
  const StepReport& report() const { return report_; }
  const TrafficReport& traffic() const { return traffic_.report(); }
  std::size_t bytes_held() const { return memory_.bytes(); }
  const Group& group() const { return group_; }

 private:
  using Members = std::vector<std::uint32_t>;
  /// Where things of a parameter lie in this worker's block, which begins with room for a group
  /// that becomes one.
  struct Place {
    std::size_t before = 0;           ///< as it was when last due, in its own type
    std::vector<std::size_t> states;  ///< that the averaging policy keeps, in the node type
  };
  struct Layout {
    explicit Layout(const Plan& plan, const Buckets& groups, int states);
    std::vector<Place> places;
    std::size_t bytes = 0;
  };

  std::vector<std::byte> changes(const Members& due) const;
  void find_moved(const Members& due);
  Members moved_in(const Members& group, DType node_type) const;
  void become_one(std::size_t group);
  void average(const Members& parameters, DType type);
  void adopt(std::uint32_t parameter, std::byte* mean);
  std::vector<std::vector<std::byte>> gather(std::vector<std::byte> mine);
  CollectiveOptions waits(const char* label) const;

  Group group_;
  WrappedModel model_;
  DataParallelOptions options_;
  Plan plan_;
  Buckets groups_;
  Layout layout_;
  SharedMemory memory_;
  std::vector<std::byte> wide_before_;  ///< of a tile
  PolicyCall call_;
  std::vector<std::int64_t> last_due_;  ///< per group: step
  std::vector<std::uint8_t> moved_;  ///< per parameter: became one in the last average_parameters()
  TrafficCount traffic_;
  StepReport report_;
  std::int64_t step_;
  std::exception_ptr ended_;  ///< why
};

}  // namespace tutti
