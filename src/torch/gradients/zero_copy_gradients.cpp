#include "torch/gradients/zero_copy_gradients.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

#include <memory>
#include <mutex>

namespace tutti {
namespace {

/// Smaller gradients are copied within a cache.
constexpr std::size_t kLeastBytes = std::size_t{64} * 1024;
/// Allocations of one size in one backward: later ones are ignored.
constexpr std::size_t kMaxAllocations = 4096;
/// How often an allocation has to become the same gradient before it is served.
constexpr int kTimes = 2;

thread_local ZeroCopyGradients* watching = nullptr;

/// Keeps the memory of a slot alive: the slot, and its mapping.
struct Tenant {
  std::unique_ptr<SlotLoan> loan;
  SharedMemory memory;
};

/// torch's allocator, but for a backward's gradients. Its memory looks as torch's own does, context
/// and address being one: libraries below torch allocate with neither (raw_allocate).
class BackwardAllocator final : public c10::Allocator {
 public:
  /// Is never destroyed, not even after main(): tensors may outlive the object that asked for it.
  static BackwardAllocator& installed() {
    static auto* const allocator = [] {
      auto* const made = new BackwardAllocator(c10::GetCPUAllocator());
      c10::SetCPUAllocator(made, /*priority=*/1);
      return made;
    }();
    return *allocator;
  }

  at::DataPtr allocate(std::size_t bytes) override {
    if (watching == nullptr || bytes < kLeastBytes) return usual_->allocate(bytes);
    auto place = watching->serve(bytes);
    if (!place) place = usual_->allocate(bytes);
    watching->served(bytes, place.get());
    return place;
  }
  at::DataPtr let(Tenant tenant) {
    void* const at = tenant.loan->at();
    const std::lock_guard lock(mutex_);
    tenants_.emplace(at, std::move(tenant));
    return {at, at, &release, c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override {
    return usual_->raw_deleter() == nullptr ? nullptr : &release;
  }
  bool is_simple_data_ptr(const at::DataPtr& data) const override {
    const std::lock_guard lock(mutex_);
    return !tenants_.contains(data.get()) && usual_->is_simple_data_ptr(data);
  }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    usual_->copy_data(to, from, bytes);
  }

 private:
  explicit BackwardAllocator(c10::Allocator* usual) : usual_(usual) {}
  static void release(void* at) {
    auto& self = installed();
    std::unique_lock lock(self.mutex_);
    const auto tenant = self.tenants_.extract(at);
    lock.unlock();
    if (tenant.empty()) self.usual_->raw_deleter()(at);
  }

  c10::Allocator* usual_;
  mutable std::mutex mutex_;
  std::unordered_map<const void*, Tenant> tenants_;  ///< by address
};

}  // namespace

ZeroCopyGradients::ZeroCopyGradients(StepExchange& exchange) : exchange_(exchange) {
  for (const auto& entry : exchange.plan().parameters()) {
    const auto bytes = static_cast<std::size_t>(entry.spec.count) * size_of(entry.spec.dtype);
    // Others are converted on their way into a slot.
    may_be_placed_.push_back(bytes >= kLeastBytes && entry.spec.dtype == entry.node_type &&
                             !entry.row_sparse());
    if (may_be_placed_.back()) sizes_[bytes];
  }
  if (!sizes_.empty()) BackwardAllocator::installed();
}

ZeroCopyGradients::Watch::Watch(ZeroCopyGradients& zero_copy)
    : zero_copy_(zero_copy), before_(watching) {
  zero_copy_.begin();
  watching = &zero_copy_;
}

ZeroCopyGradients::Watch::~Watch() {
  zero_copy_.end();
  watching = before_;
}

void ZeroCopyGradients::begin() {
  for (auto& [bytes, size] : sizes_) {
    size.next = 0;
    for (auto& allocation : size.allocations) {
      allocation.at = nullptr;
      allocation.lent = false;
    }
  }
}

/// An allocation that was served in vain has to become the gradient again first.
void ZeroCopyGradients::end() {
  for (auto& [bytes, size] : sizes_) {
    for (auto& allocation : size.allocations) {
      if (allocation.lent) allocation.times = 0;
    }
  }
}

at::DataPtr ZeroCopyGradients::serve(std::size_t bytes) {
  const auto size = sizes_.find(bytes);
  if (size == sizes_.end() || size->second.next >= size->second.allocations.size()) return {};
  auto& allocation = size->second.allocations[size->second.next];
  if (allocation.times < kTimes) return {};
  auto loan = exchange_.leaves().lend(static_cast<std::size_t>(allocation.parameter));
  if (!loan) return {};
  allocation.lent = true;
  return BackwardAllocator::installed().let({std::move(loan), exchange_.nodes().arena()});
}

void ZeroCopyGradients::served(std::size_t bytes, const void* at) {
  const auto found = sizes_.find(bytes);
  if (found == sizes_.end()) return;
  auto& size = found->second;
  if (size.next == kMaxAllocations) return;
  if (size.next == size.allocations.size()) size.allocations.emplace_back();
  size.allocations[size.next++].at = at;
}

void ZeroCopyGradients::arrived(std::size_t parameter, const torch::Tensor& gradient,
                                bool may_stay) {
  if (!may_be_placed_[parameter] || watching != this) return;
  auto& size = sizes_.at(gradient.nbytes());
  // Memory that was freed may have been allocated again: the last one counts.
  for (auto k = size.next; k > 0; --k) {
    auto& allocation = size.allocations[k - 1];
    if (allocation.at != gradient.data_ptr()) continue;
    const auto p = static_cast<std::int64_t>(parameter);
    allocation.times = may_stay ? (allocation.parameter == p ? allocation.times + 1 : 1) : 0;
    allocation.parameter = p;
    allocation.lent = false;
    return;
  }
}

}  // namespace tutti
