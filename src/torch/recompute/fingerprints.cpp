#include "torch/recompute/fingerprints.h"

#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>

#include "kernels/hash.h"
#include "torch/model/resolved.h"

namespace tutti {
namespace {

// Multipliers are odd, so that no bit of a factor is lost; libtorch takes signed ones.
constexpr auto kOfElement = static_cast<std::int64_t>(0x9E3779B97F4A7C15U);
constexpr auto kOfPlace = static_cast<std::int64_t>(0xC2B2AE3D27D4EB4FU);
constexpr auto kMix = static_cast<std::int64_t>(0xBF58476D1CE4E5B9U);
constexpr std::int64_t kSlices = 32;
constexpr std::int64_t kLeastSlice = 1 << 18;

/// Words have at most 32 bits: products of 64 tell apart such as differ in their highest bits
/// alone.
torch::Tensor words_of(const torch::Tensor& result) {
  const auto dense = resolved(result.detach()).contiguous().view({-1});
  const auto bytes = dense.element_size();
  return dense.view(bytes == 1 ? torch::kByte : bytes == 2 ? torch::kShort : torch::kInt);
}

/// Hashes take 16 bytes for each word: those of one slice exist at a time.
torch::Tensor digest_on_device(const torch::Tensor& result) {
  const auto words = words_of(result);
  const auto options = torch::dtype(torch::kLong).device(result.device());
  auto sum = torch::zeros({}, options);
  const auto count = words.numel();
  const auto slice = std::max(kLeastSlice, (count + kSlices - 1) / kSlices);
  for (std::int64_t begin = 0; begin < count; begin += slice) {
    const auto end = std::min(begin + slice, count);
    auto hashes = torch::arange(begin, end, options);
    hashes.mul_(kOfPlace).add_(words.slice(0, begin, end), kOfElement);
    hashes.bitwise_xor_(hashes.bitwise_right_shift(32)).mul_(kMix);
    hashes.bitwise_xor_(hashes.bitwise_right_shift(29));
    sum.add_(hashes.sum());
  }
  return sum;
}

}  // namespace

std::size_t place_of(const torch::Tensor& tensor, const TensorList& all) {
  const auto is_it = [&](const torch::Tensor& one) { return one.is_same(tensor); };
  return static_cast<std::size_t>(std::ranges::find_if(all, is_it) - all.begin());
}

std::vector<Fingerprint> fingerprints_of(const TensorList& results, const TensorList& inputs) {
  std::vector<Fingerprint> all;
  for (const auto& result : results) {
    const auto place = place_of(result, results);
    if (place < all.size()) {
      all.push_back(all[place]);
      continue;
    }
    all.push_back({.place = place});
    if (!result.defined()) continue;
    auto& print = all.back();
    // A leaf that is no input has its gradient from outside the segment: it is returned as it is.
    const bool is_input = place_of(result, inputs) < inputs.size();
    print.is_computed = result.requires_grad() && (is_input || !result.is_leaf());
    print.device = result.device();
    print.type = result.scalar_type();
    print.sizes = result.sizes().vec();
    if (print.is_on_device()) continue;
    const auto dense = resolved(result.detach()).contiguous();
    print.bytes = digest(dense.const_data_ptr(), dense.nbytes());
  }
  return all;
}

torch::Tensor digests_on_device(const TensorList& results, const std::vector<Fingerprint>& prints) {
  const torch::NoGradGuard no_grad;
  TensorList digests;
  for (std::size_t o = 0; o < results.size(); ++o) {
    if (!prints[o].is_on_device() || prints[o].place != o) continue;
    digests.push_back(digest_on_device(results[o]));
  }
  return digests.empty() ? torch::Tensor() : torch::stack(digests);
}

DigestComparison::DigestComparison(const torch::Tensor& first, const torch::Tensor& again) {
  if (!first.defined()) return;
  const auto differs = first.ne(again);
  differs_ = torch::empty(differs.sizes(), torch::dtype(torch::kBool).pinned_memory(true));
  differs_.copy_(differs, /*non_blocking=*/true);
  const auto device = differs.device();
  came_.emplace(device.type());
  came_->record(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
}

std::optional<std::size_t> DigestComparison::difference() {
  if (!came_) return {};
  came_->synchronize();
  const auto* const begin = differs_.const_data_ptr<bool>();
  const auto* const end = begin + differs_.numel();
  const auto* const first = std::find(begin, end, true);
  if (first == end) return {};
  return static_cast<std::size_t>(first - begin);
}

}  // namespace tutti
