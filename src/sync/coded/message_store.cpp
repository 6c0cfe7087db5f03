#include "sync/coded/message_store.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace tutti {

std::size_t MessageHeader::told_bytes() const {
  return offsetof(MessageHeader, refusal) + std::strlen(refusal) + 1;
}

MessageStore::Control::Control(Sections& at, const Layout& layout, std::size_t hosts)
    : headers(at, layout.logical_workers, layout.buckets.size()),
      sum_values(at, layout.buckets.size()),
      logs(at, hosts),
      entries(at, hosts, layout.logical_workers * layout.buckets.size()) {}

MessageStore::Arrays::Arrays(Sections& at, const Layout& layout, std::size_t elements)
    : kept(at, 2 * static_cast<std::size_t>(layout.kept), elements), messages(at, layout.bounds) {}

std::size_t MessageStore::place(const Plan& plan) {
  std::size_t elements = 0;
  for (std::size_t b = 0; b < layout_.buckets.size(); ++b) {
    for (const auto p : layout_.buckets[b]) {
      bucket_of_[p] = b;
      element_at_[p] = elements;
      elements += static_cast<std::size_t>(plan.parameters()[p].spec.count);
    }
    elements = round_up(elements, kSectionAlignment / sizeof(float));
  }
  return elements;
}

MessageStore::MessageStore(StepMemory& memory, const Plan& plan, Layout layout,
                           const std::string& name)
    : layout_(std::move(layout)),
      bucket_of_(plan.parameters().size()),
      element_at_(plan.parameters().size()),
      kept_elements_(place(plan)),
      is_second_(layout_.logical_workers, std::vector<bool>(plan.parameters().size())),
      control_(memory.add_common<Control>(
          layout_, static_cast<std::size_t>(memory.group().state()->hosts()))),
      memory_(memory.group().allocate_common(
          std::max<std::size_t>(
              layout_.logical_workers * bytes_of_sections<Arrays>(layout_, kept_elements_), 1),
          fmt::format("messages of \"{}\" for {} logical workers", name,
                      layout_.logical_workers))) {
  Sections at(memory_.data());
  for (std::size_t l = 0; l < layout_.logical_workers; ++l) {
    arrays_.emplace_back(at, layout_, kept_elements_);
  }
}

float* MessageStore::next_residuals(std::size_t logical, std::size_t bucket) const {
  const auto& members = layout_.buckets[bucket];
  const auto& second = is_second_[logical];
  for (const auto p : members) {
    if (second[p] != second[members.front()]) return nullptr;
  }
  return next(Kept::residual, logical, members.front());
}

std::vector<std::span<std::byte>> MessageStore::kept_memory(const Plan& plan,
                                                            std::size_t logical) const {
  std::vector<std::span<std::byte>> parts;
  for (int k = 0; k < layout_.kept; ++k) {
    for (const auto& bucket : layout_.buckets) {
      for (const auto p : bucket) {
        auto* const at = reinterpret_cast<std::byte*>(kept(static_cast<Kept>(k), logical, p));
        const auto bytes =
            static_cast<std::size_t>(plan.parameters()[p].spec.count) * sizeof(float);
        if (!parts.empty() && parts.back().data() + parts.back().size() == at) {
          parts.back() = {parts.back().data(), parts.back().size() + bytes};
        } else {
          parts.emplace_back(at, bytes);
        }
      }
    }
  }
  return parts;
}

}  // namespace tutti
