// The workers of a step exchange: which of them have data in a step, whether their modules and, at
// the end, their models are alike. See step_exchange.h.

#include <fmt/format.h>

#include "job/publish.h"
#include "sync/step/step_exchange.h"
#include "tutti/error.h"

namespace tutti {

bool StepExchange::has_leaf(int rank) const {
  const auto& other = header(rank);
  switch (other.mode) {
    case StepMode::one_backward:
      return true;
    case StepMode::micro_batches:
      return other.leaves > 0;
    case StepMode::no_gradient:
      break;
  }
  return other.weight > 0;
}

int StepExchange::buffer_source() const {
  for (int r = 0; r < group_.size(); ++r) {
    if (has_leaf(r)) return r;
  }
  return 0;
}

/// May be called before all have published: returns false where a lower rank is certain to be the
/// source.
bool StepExchange::may_be_source() const {
  if (group_.rank() == 0) return true;
  if (!has_leaf(group_.rank())) return false;
  for (int r = 0; r < group_.rank(); ++r) {
    const auto& other = header(r);
    if (other.opened.load(std::memory_order_acquire) < step_) continue;
    if (other.mode != StepMode::micro_batches && has_leaf(r)) return false;
    if (other.mode == StepMode::micro_batches && other.declared > 0) return false;
  }
  return true;
}

bool StepExchange::all_drained() const {
  for (int r = 0; r < group_.size(); ++r) {
    if (header(r).drained == 0) return false;
  }
  return true;
}

/// Workers without a leaf ran no forward: the modes of their modules do not matter.
void StepExchange::compare_modes() const {
  const int first = buffer_source();
  const auto modes_of = [&](int r) { return nodes_.board_of(r).modes(); };
  const auto text = [](std::uint8_t mode) { return mode != 0 ? "train()" : "eval()"; };
  for (int r = first + 1; r < group_.size(); ++r) {
    if (!has_leaf(r)) continue;
    for (std::size_t k = 0; k < options_.modules; ++k) {
      if (modes_of(r)[k] == modes_of(first)[k]) continue;
      throw Mismatch(
          fmt::format("{}: {} is in {} on rank {}, in {} on rank {}; call train() or eval() alike "
                      "on all workers",
                      step_text(), options_.module_name(k), text(modes_of(first)[k]),
                      group_.job_rank(first), text(modes_of(r)[k]), group_.job_rank(r)));
    }
  }
}

std::optional<std::string> StepExchange::leave(const ModelMemory& model) noexcept {
  if (!state_.job().is_own() || !digests_.compares() || done_ == 0 || is_open()) return {};
  auto& mine = header(group_.rank());
  if (mine.ended.load(std::memory_order_relaxed) != 0) return {};
  std::vector<int> parted;
  for (int r = 0; r < group_.size(); ++r) {
    // Another worker may still be reading this worker's board of a dropped step.
    if (header(r).folded.load(std::memory_order_acquire) < done_) return {};
  }
  digests_.publish(model);
  // Sequentially consistent: of two workers that part at once, one sees the other.
  send_ahead(state_.job(),
             {{nodes_.board().digests().data(), nodes_.board().digests().size_bytes()}});
  publish_early(state_.job(), mine.parted, done_ + 1);
  for (int r = 0; r < group_.size(); ++r) {
    if (header(r).parted.load(std::memory_order_seq_cst) == done_ + 1) parted.push_back(r);
  }
  const auto found = digests_.difference(parted);
  if (!found || header(0).parting_said.exchange(1) != 0) return {};
  return fmt::format("\"{}\" after step {}: {}", options_.name, number_of(done_), *found);
}

}  // namespace tutti
