#include "sync/digest_check.h"

#include <fmt/format.h>

#include <algorithm>

#include "kernels/hash.h"
#include "tutti/error.h"

namespace tutti {

bool DigestCheck::due(std::uint64_t step) const {
  return every_ > 0 && step % static_cast<std::uint64_t>(every_) == 0 && group_.size() > 1;
}

void DigestCheck::publish(const ModelMemory& model) const {
  const auto digests = boards_[static_cast<std::size_t>(group_.rank())].digests();
  for (std::size_t p = 0; p < model.parameters.size(); ++p) {
    const auto& spec = plan_.parameters()[p].spec;
    digests[p] =
        digest(model.parameters[p], static_cast<std::size_t>(spec.count) * size_of(spec.dtype));
  }
  std::copy(buffers_.begin(), buffers_.end(),
            digests.begin() + static_cast<std::ptrdiff_t>(plan_.parameters().size()));
}

void DigestCheck::compare(std::string_view step) const {
  const auto reference = boards_[0].digests();
  for (std::size_t i = 0; i < reference.size(); ++i) {
    for (int r = 1; r < group_.size(); ++r) {
      if (boards_[static_cast<std::size_t>(r)].digests()[i] == reference[i]) continue;
      const auto parameters = plan_.parameters().size();
      const auto& name = i < parameters ? plan_.parameters()[i].spec.name
                                        : plan_.buffers()[i - parameters].spec.name;
      throw Mismatch(fmt::format(
          "{}: {} \"{}\" of rank {} differs from that of rank {} (first difference; digests are "
          "compared every {} steps)",
          step, i < parameters ? "parameter" : "buffer", name, group_.job_rank(r),
          group_.job_rank(0), every_));
    }
  }
}

void DigestCheck::note_buffers(const ModelMemory& model) {
  buffers_.resize(model.buffers.size());
  for (std::size_t b = 0; b < model.buffers.size(); ++b) {
    buffers_[b] = digest(model.buffers[b], plan_.buffers()[b].bytes);
  }
}

}  // namespace tutti
