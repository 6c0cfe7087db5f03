#include "sync/step/digest_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <numeric>

#include "kernels/hash.h"
#include "tutti/error.h"

namespace tutti {

bool is_checked_step(std::uint64_t step, std::int64_t every) {
  constexpr std::uint64_t kLastPower = 64;
  if (every <= 0) return false;
  return (step <= kLastPower && std::has_single_bit(step)) ||
         step % static_cast<std::uint64_t>(every) == 0;
}

void DigestCheck::publish(const ModelMemory& model) const {
  const auto digests = boards_.mine().digests();
  for (std::size_t p = 0; p < model.parameters.size(); ++p) {
    if (model.parameters[p] == nullptr) continue;
    const auto& spec = plan_.parameters()[p].spec;
    digests[p] =
        digest(model.parameters[p], static_cast<std::size_t>(spec.count) * size_of(spec.dtype));
  }
  std::copy(buffers_.begin(), buffers_.end(),
            digests.begin() + static_cast<std::ptrdiff_t>(plan_.parameters().size()));
}

void DigestCheck::compare(std::string_view step) const {
  std::vector<int> all(static_cast<std::size_t>(group_.size()));
  std::iota(all.begin(), all.end(), 0);
  const auto found = difference(all);
  if (!found) return;
  throw Mismatch(fmt::format(
      "{}: {} (first difference; digests are compared in steps 1, 2, 4 to 64, every {} steps and "
      "at "
      "the end of join()){}",
      step, *found, every_,
      found->starts_with("parameter") ? "; the updates were not the same on all workers: one left "
                                        "out, another learning rate, a "
                                        "change by hand"
                                      : ""));
}

std::optional<std::string> DigestCheck::difference(std::span<const int> ranks) const {
  const auto of = [this](int rank, std::size_t i) { return boards_.of(rank).digests()[i]; };
  const auto parameters = plan_.parameters().size();
  for (std::size_t i = 0; i < parameters + plan_.buffers().size(); ++i) {
    std::optional<int> reference;
    for (const int r : ranks) {
      if (i < parameters && of(r, i) == 0) continue;  // it does not compare this one
      if (!reference) reference = r;
      if (of(r, i) == of(*reference, i)) continue;
      const auto& name = i < parameters ? plan_.parameters()[i].spec.name
                                        : plan_.buffers()[i - parameters].spec.name;
      return fmt::format("{} \"{}\" of rank {} differs from that of rank {}",
                         i < parameters ? "parameter" : "buffer", name, group_.job_rank(r),
                         group_.job_rank(*reference));
    }
  }
  return {};
}

void DigestCheck::note_buffers(const ModelMemory& model) {
  buffers_.resize(model.buffers.size());
  for (std::size_t b = 0; b < model.buffers.size(); ++b) {
    buffers_[b] = digest(model.buffers[b], plan_.buffers()[b].bytes);
  }
}

}  // namespace tutti
