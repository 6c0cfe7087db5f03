#include "sync/update/moving_averages.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "kernels/average.h"

namespace tutti {

MovingAverages::MovingAverages(const Plan& plan, const SharedModel& model, double decay, int rank,
                               int size)
    : plan_(plan), model_(model), decay_(decay) {
  std::vector<std::uint32_t> all(plan.parameters().size());
  std::iota(all.begin(), all.end(), 0U);
  share_ = tile_share(plan, all, rank, size);
}

/// Calls work(range, average, master, bytes) for what this worker has of each parameter.
template <class Work>
void MovingAverages::for_share(const Work& work) const {
  for (const auto& range : share_) {
    const auto element = size_of(plan_.parameters()[range.parameter].node_type);
    const auto skip = static_cast<std::size_t>(range.begin) * element;
    work(range, model_.average(range.parameter) + skip, model_.master(range.parameter) + skip,
         static_cast<std::size_t>(range.end - range.begin) * element);
  }
}

void MovingAverages::follow() {
  for_share([&](const ElementRange& range, std::byte* average, const std::byte* master,
                std::size_t bytes) {
    if (steps_ == 0) {
      std::memcpy(average, master, bytes);
    } else {
      move_average(average, master, plan_.parameters()[range.parameter].node_type,
                   range.end - range.begin, decay_);
    }
  });
  ++steps_;
}

void MovingAverages::swap(bool in) {
  for_share(
      [&](const ElementRange& range, std::byte* average, std::byte* master, std::size_t bytes) {
        if (model_.master(range.parameter) != model_.value(range.parameter)) {
          model_.round_values(range, in ? average : master);
        } else {
          std::swap_ranges(average, average + bytes, master);
        }
      });
}

}  // namespace tutti
