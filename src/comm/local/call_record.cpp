#include "comm/local/call_record.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "job/wire/mix.h"
#include "kernels/hash.h"

namespace tutti {
namespace {

/// The elements a call is about: what must be equal on all members, unless each says what it gives
/// to whom.
std::int64_t count_of(const Operation& operation) noexcept {
  if (operation.is_variable && operation.kind != OperationKind::all_to_all) {
    return std::accumulate(operation.counts.begin(), operation.counts.end(), std::int64_t{0});
  }
  switch (operation.kind) {
    case OperationKind::barrier:
      return 0;
    case OperationKind::all_gather:
    case OperationKind::reduce_scatter:
      return std::max(operation.in.count, operation.out.count);
    case OperationKind::scatter:
      return operation.out.count;
    default:
      return operation.in.count;
  }
}

}  // namespace

std::uint64_t write_record(CallRecord& record, const Operation& operation) {
  record.kind = operation.kind;
  record.reduction = reduces(operation.kind) ? operation.reduction : Reduction::sum;
  record.dtype = operation.in.dtype;
  record.root = operation.root;
  record.count = count_of(operation);
  record.label_bytes = static_cast<std::uint8_t>(std::min(operation.label.size(), kLabelBytes));
  std::uint64_t hash = (static_cast<std::uint64_t>(record.kind) << 48) |
                       (static_cast<std::uint64_t>(record.reduction) << 40) |
                       (static_cast<std::uint64_t>(record.dtype) << 32) |
                       static_cast<std::uint32_t>(record.root);
  const bool is_pairwise = operation.is_variable && operation.kind == OperationKind::all_to_all;
  hash = mix(hash, is_pairwise ? 0 : static_cast<std::uint64_t>(record.count));
  if (record.label_bytes != 0) {
    std::memcpy(record.label.data(), operation.label.data(), record.label_bytes);
    hash = mix(hash, digest(record.label_text()));
  }
  record.counts_hash = 0;
  if (operation.is_variable) {
    record.counts_hash = digest(operation.counts.data(), operation.counts.size_bytes()) | 1U;
    const std::size_t kept = std::min(operation.counts.size(), record.counts.size());
    std::copy_n(operation.counts.begin(), kept, record.counts.begin());
    hash = mix(hash, is_pairwise ? 1 : record.counts_hash);
  }
  record.layout_count = static_cast<std::uint32_t>(operation.layout.size());
  if (!operation.layout.empty()) {
    hash = mix(hash, digest(operation.layout.data(), operation.layout.size_bytes()) | 1U);
    const std::size_t kept = std::min(operation.layout.size(), record.layout.size());
    std::copy_n(operation.layout.begin(), kept, record.layout.begin());
  }
  return hash;
}

namespace {

/// " as [2, 3] with strides [3, 1]", as far as it was kept.
std::string layout_text(const CallRecord& record) {
  const std::size_t dims = record.layout_count / 2;
  const auto list = [&](std::size_t first) {
    const std::size_t last = std::min(first + dims, record.layout.size());
    if (first >= last) return std::string("[…]");
    return fmt::format("[{}{}]",
                       fmt::join(record.layout.begin() + first, record.layout.begin() + last, ", "),
                       last < first + dims ? ", …" : "");
  };
  return fmt::format(" as {} with strides {}", list(0), list(dims));
}

}  // namespace

std::string describe(const CallRecord& record, int group_size) {
  std::string text(name_of(record.kind));
  if (reduces(record.kind))
    fmt::format_to(std::back_inserter(text), " {}", name_of(record.reduction));
  if (record.kind != OperationKind::barrier) {
    fmt::format_to(std::back_inserter(text), " {}[{}]", name_of(record.dtype), record.count);
  }
  if (record.counts_hash != 0) {
    const std::size_t shown =
        std::min<std::size_t>(record.counts.size(), static_cast<std::size_t>(group_size));
    fmt::format_to(std::back_inserter(text), " as {}{}",
                   fmt::join(record.counts.begin(), record.counts.begin() + shown, "+"),
                   shown < static_cast<std::size_t>(group_size) ? "+…" : "");
  }
  if (is_to_root(record.kind)) {
    fmt::format_to(std::back_inserter(text), " to rank {}", record.root);
  }
  if (is_from_root(record.kind)) {
    fmt::format_to(std::back_inserter(text), " from rank {}", record.root);
  }
  if (record.layout_count != 0) text += layout_text(record);
  if (record.label_bytes != 0) {
    fmt::format_to(std::back_inserter(text), " \"{}\"", record.label_text());
  }
  return text;
}

}  // namespace tutti
