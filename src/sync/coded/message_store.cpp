#include "sync/coded/message_store.h"

#include <fmt/format.h>

#include <cstring>
#include <utility>

#include "comm/group_state.h"

namespace tutti {

std::size_t MessageHeader::told_bytes() const {
  return offsetof(MessageHeader, refusal) + std::strlen(refusal) + 1;
}

namespace {

std::size_t aligned(std::size_t bytes) { return (bytes + 63) / 64 * 64; }

}  // namespace

MessageStore::MessageStore(const Group& group, const Plan& plan, Layout layout,
                           const std::string& name)
    : layout_(std::move(layout)),
      bucket_of_(plan.parameters().size()),
      element_at_(plan.parameters().size()),
      is_second_(layout_.logical_workers, std::vector<bool>(plan.parameters().size())),
      memory_([&] {
        std::size_t elements = 0;
        std::size_t bytes = 0;
        for (std::size_t b = 0; b < layout_.buckets.size(); ++b) {
          for (const auto p : layout_.buckets[b]) {
            bucket_of_[p] = b;
            element_at_[p] = elements;
            elements += static_cast<std::size_t>(plan.parameters()[p].spec.count);
          }
          elements = aligned(elements * sizeof(float)) / sizeof(float);
          message_at_.push_back(bytes);
          bytes += aligned(layout_.bounds[b]);
        }
        kept_elements_ = elements;
        const auto headers = aligned(layout_.buckets.size() * sizeof(MessageHeader));
        first_message_ =
            headers + 2 * static_cast<std::size_t>(layout_.kept) * elements * sizeof(float);
        bytes_per_logical_ = first_message_ + bytes;
        first_sum_ = layout_.logical_workers * bytes_per_logical_;
        first_log_ =
            first_sum_ + aligned(layout_.buckets.size() * sizeof(std::atomic<std::int64_t>));
        log_bytes_ = aligned(sizeof(MessageLog) + layout_.logical_workers * layout_.buckets.size() *
                                                      sizeof(std::atomic<std::uint64_t>));
        return group.allocate_common(
            first_log_ + static_cast<std::size_t>(group.state()->hosts()) * log_bytes_,
            fmt::format("messages of \"{}\" for {} logical workers", name,
                        layout_.logical_workers));
      }()) {}

MessageHeader& MessageStore::header(std::size_t logical, std::size_t bucket) const {
  return reinterpret_cast<MessageHeader*>(memory_.data() + logical * bytes_per_logical_)[bucket];
}

std::byte* MessageStore::message(std::size_t logical, std::size_t bucket) const {
  return memory_.data() + logical * bytes_per_logical_ + first_message_ + message_at_[bucket];
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

float* MessageStore::kept_at(Kept which, std::size_t logical, std::size_t parameter,
                             bool second) const {
  const auto headers = aligned(layout_.buckets.size() * sizeof(MessageHeader));
  auto* const first =
      reinterpret_cast<float*>(memory_.data() + logical * bytes_per_logical_ + headers);
  const auto set = 2 * static_cast<std::size_t>(which) + (second ? 1 : 0);
  return first + set * kept_elements_ + element_at_[parameter];
}

}  // namespace tutti
