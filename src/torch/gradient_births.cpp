#include "torch/gradient_births.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

#include <memory>

namespace tutti {
namespace {

/// Smaller gradients are copied within a cache.
constexpr std::size_t kLeastBytes = std::size_t{64} * 1024;
/// Of one size, in one backward: later ones are not looked at.
constexpr std::size_t kMostAllocations = 4096;
/// So often an allocation has to become the same gradient before it is served.
constexpr int kTimes = 2;

thread_local GradientBirths* watching = nullptr;

/// What a tensor in a slot holds: the slot, and the memory that it lies in.
struct Tenant {
  std::unique_ptr<SlotLoan> loan;
  SharedMemory memory;
};
void move_out(void* tenant) { delete static_cast<Tenant*>(tenant); }

/// torch's allocator, but for a backward's gradients.
class BackwardAllocator final : public c10::Allocator {
 public:
  explicit BackwardAllocator(c10::Allocator* usual) : usual_(usual) {}
  at::DataPtr allocate(std::size_t bytes) override {
    if (watching == nullptr || bytes < kLeastBytes) return usual_->allocate(bytes);
    auto place = watching->serve(bytes);
    if (!place) place = usual_->allocate(bytes);
    watching->served(bytes, place.get());
    return place;
  }
  c10::DeleterFnPtr raw_deleter() const override { return usual_->raw_deleter(); }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    usual_->copy_data(to, from, bytes);
  }

 private:
  c10::Allocator* usual_;
};

/// Stays for good, past the end of main() too: tensors may outlive whoever asked for it.
void install() {
  [[maybe_unused]] static const auto* const allocator = [] {
    auto* const made = new BackwardAllocator(c10::GetCPUAllocator());
    c10::SetCPUAllocator(made, /*priority=*/1);
    return made;
  }();
}

}  // namespace

GradientBirths::GradientBirths(StepExchange& exchange) : exchange_(exchange) {
  for (const auto& entry : exchange.plan().parameters()) {
    const auto bytes = static_cast<std::size_t>(entry.spec.count) * size_of(entry.spec.dtype);
    // Others are converted on their way into a slot.
    may_be_born_.push_back(bytes >= kLeastBytes && entry.spec.dtype == entry.node_type);
    if (may_be_born_.back()) sizes_[bytes];
  }
  if (!sizes_.empty()) install();
}

GradientBirths::Watch::Watch(GradientBirths& births) {
  births.begin();
  watching = &births;
}

GradientBirths::Watch::~Watch() {
  watching->end();
  watching = nullptr;
}

void GradientBirths::begin() {
  for (auto& [bytes, size] : sizes_) {
    size.next = 0;
    for (auto& allocation : size.allocations) {
      allocation.at = nullptr;
      allocation.lent = false;
    }
  }
}

/// Who was served in vain has to earn it again.
void GradientBirths::end() {
  for (auto& [bytes, size] : sizes_) {
    for (auto& allocation : size.allocations) {
      if (allocation.lent) allocation.times = 0;
    }
  }
}

at::DataPtr GradientBirths::serve(std::size_t bytes) {
  const auto size = sizes_.find(bytes);
  if (size == sizes_.end() || size->second.next >= size->second.allocations.size()) return {};
  auto& allocation = size->second.allocations[size->second.next];
  if (allocation.times < kTimes) return {};
  auto loan = exchange_.lend(static_cast<std::size_t>(allocation.parameter));
  if (!loan) return {};
  allocation.lent = true;
  void* const memory = loan->at();
  return {memory, new Tenant{std::move(loan), exchange_.arena()}, &move_out,
          c10::Device(c10::kCPU)};
}

void GradientBirths::served(std::size_t bytes, const void* at) {
  const auto found = sizes_.find(bytes);
  if (found == sizes_.end()) return;
  auto& size = found->second;
  if (size.next == kMostAllocations) return;
  if (size.next == size.allocations.size()) size.allocations.emplace_back();
  size.allocations[size.next++].at = at;
}

torch::Tensor GradientBirths::arrived(std::size_t parameter, const torch::Tensor& gradient,
                                      bool is_ours) {
  if (!may_be_born_[parameter] || watching != this) return gradient;
  auto& size = sizes_.at(gradient.nbytes());
  // Memory that was freed may have been allocated again: the last one counts.
  for (auto k = size.next; k > 0; --k) {
    auto& allocation = size.allocations[k - 1];
    if (allocation.at != gradient.data_ptr()) continue;
    const auto p = static_cast<std::int64_t>(parameter);
    const bool is_there = allocation.lent && allocation.parameter == p;
    allocation.times = is_ours ? (allocation.parameter == p ? allocation.times + 1 : 1) : 0;
    allocation.parameter = p;
    allocation.lent = false;
    return is_there && !is_ours ? gradient.clone() : gradient;
  }
  return gradient;
}

}  // namespace tutti
