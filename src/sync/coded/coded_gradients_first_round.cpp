// The first round of codecs that have two: see coded_gradients.h.

#include <algorithm>
#include <cstring>

#include "sync/coded/coded_gradients.h"
#include "sync/plan/tile_share.h"

namespace tutti {
namespace {

/// The format of the first round: float32, unchanged.
class AsTheyAre final : public Codec {
 public:
  std::string name() const override { return "float32"; }
  std::size_t bound(std::int64_t count, const EncodeContext&) const override {
    return static_cast<std::size_t>(count) * sizeof(float);
  }
  Encoded encode(std::span<const float> values, const EncodeContext&,
                 std::byte* message) const override {
    std::memcpy(message, values.data(), values.size_bytes());
    return {.bytes = values.size_bytes(), .values = static_cast<std::int64_t>(values.size())};
  }
  void decode(std::span<const std::byte> message, const EncodeContext&, std::int64_t begin,
              std::span<float> to) const override {
    std::memcpy(to.data(), message.data() + static_cast<std::size_t>(begin) * sizeof(float),
                to.size_bytes());
  }
};

}  // namespace

/// Every worker adds up the first rounds of all, which are small.
CodedGradients::Refusal CodedGradients::first_round() {
  for_own_tasks([this](const MessageTask& task, const BucketEncoder::Folds& folds) {
    encoder_.first_round(task, folds);
    send_first_round(task);
  });
  exchange_.protocol().barrier("the first round of its gradients in");
  auto refusal = first_refusal();
  if (!refusal.text.empty()) return refusal;
  exchange_first_rounds();
  add_up_first_round();
  // Headers are written again from here on.
  exchange_.protocol().barrier("the sum of the first round in");
  return {};
}

std::span<const float> CodedGradients::first_sum_of(std::size_t bucket) const {
  if (first_sums_.empty()) return {};
  return first_sums_[bucket];
}

void CodedGradients::add_up_first_round() {
  const AsTheyAre plain;
  MessageSum sum(plain, leaves());
  first_sums_.resize(board_.buckets().size());
  for (std::size_t b = 0; b < board_.buckets().size(); ++b) {
    first_sums_[b].assign(board_.first_round(0, b).size(), 0.0f);
    std::vector<SumTerm> terms;
    for (std::size_t l = 0; l < carried_.size(); ++l) {
      if (carried_[l].elements[b] == 0) continue;
      terms.push_back(term_of(l, board_.buckets()[b].front()));
      terms.back().message = std::as_bytes(board_.first_round(l, b));
    }
    if (terms.empty()) continue;
    const std::span all(first_sums_[b]);
    for (std::size_t begin = 0; begin < all.size(); begin += static_cast<std::size_t>(kTile)) {
      sum.take(terms, static_cast<std::int64_t>(begin),
               all.subspan(begin, std::min(static_cast<std::size_t>(kTile), all.size() - begin)));
    }
  }
}

}  // namespace tutti
