#include "sync/coded/message_store.h"

#include <fmt/format.h>

#include <utility>

namespace tutti {
namespace {

std::size_t aligned(std::size_t bytes) { return (bytes + 63) / 64 * 64; }

}  // namespace

MessageStore::MessageStore(const Group& group, const Plan& plan, Layout layout,
                           const std::string& name)
    : layout_(std::move(layout)),
      group_of_(plan.parameters().size()),
      element_at_(plan.parameters().size()),
      is_second_(layout_.logical_workers, std::vector<bool>(plan.parameters().size())),
      memory_([&] {
        std::size_t elements = 0;
        std::size_t bytes = 0;
        for (std::size_t g = 0; g < layout_.groups.size(); ++g) {
          for (const auto p : layout_.groups[g]) {
            group_of_[p] = g;
            element_at_[p] = elements;
            elements += static_cast<std::size_t>(plan.parameters()[p].spec.count);
          }
          elements = aligned(elements * sizeof(float)) / sizeof(float);
          message_at_.push_back(bytes);
          bytes += aligned(layout_.bounds[g]);
          if (layout_.first_round.empty()) continue;
          first_at_.push_back(bytes);
          bytes += aligned(layout_.first_round[g] * sizeof(float));
        }
        kept_elements_ = elements;
        const auto headers = aligned(layout_.groups.size() * sizeof(MessageHeader));
        first_message_ =
            headers + 2 * static_cast<std::size_t>(layout_.kept) * elements * sizeof(float);
        bytes_per_logical_ = first_message_ + bytes;
        first_sum_ = layout_.logical_workers * bytes_per_logical_;
        return group.allocate_common(
            first_sum_ + layout_.groups.size() * sizeof(std::atomic<std::int64_t>),
            fmt::format("messages of \"{}\" for {} logical workers", name,
                        layout_.logical_workers));
      }()) {}

MessageHeader& MessageStore::header(std::size_t logical, std::size_t group) const {
  return reinterpret_cast<MessageHeader*>(memory_.data() + logical * bytes_per_logical_)[group];
}

std::byte* MessageStore::message(std::size_t logical, std::size_t group) const {
  return memory_.data() + logical * bytes_per_logical_ + first_message_ + message_at_[group];
}

std::span<float> MessageStore::first_round(std::size_t logical, std::size_t group) const {
  if (layout_.first_round.empty()) return {};
  auto* const at = memory_.data() + logical * bytes_per_logical_ + first_message_;
  return {reinterpret_cast<float*>(at + first_at_[group]), layout_.first_round[group]};
}

float* MessageStore::next_residuals(std::size_t logical, std::size_t group) const {
  const auto& members = layout_.groups[group];
  const auto& second = is_second_[logical];
  for (const auto p : members) {
    if (second[p] != second[members.front()]) return nullptr;
  }
  return next(Kept::residual, logical, members.front());
}

float* MessageStore::kept_at(Kept which, std::size_t logical, std::size_t parameter,
                             bool second) const {
  const auto headers = aligned(layout_.groups.size() * sizeof(MessageHeader));
  auto* const first =
      reinterpret_cast<float*>(memory_.data() + logical * bytes_per_logical_ + headers);
  const auto set = 2 * static_cast<std::size_t>(which) + (second ? 1 : 0);
  return first + set * kept_elements_ + element_at_[parameter];
}

}  // namespace tutti
