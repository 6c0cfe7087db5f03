#include "comm/check_operation.h"

#include <cstdint>
#include <functional>
#include <string>

#include <fmt/format.h>

#include "tutti/error.h"

namespace tutti {
namespace {

/// Checks of one call; every refusal begins with what was called.
class Check {
 public:
  Check(const Operation& operation, int rank, int size)
      : operation_(operation), rank_(rank), size_(size) {}

  void run() const {
    spans();
    if (operation_.deadline && operation_.deadline->count() <= 0) {
      refuse(fmt::format("a deadline of {} ms is not positive", operation_.deadline->count()));
    }
    switch (operation_.kind) {
      case OperationKind::all_reduce:
        reduction();
        if (operation_.out.count != operation_.in.count) refuse_counts(operation_.in.count);
        overlap(0);
        break;
      case OperationKind::reduce:
        reduction();
        root();
        if (rank_ == operation_.root) {
          if (operation_.out.count != operation_.in.count) refuse_counts(operation_.in.count);
          overlap(0);
        }
        break;
      case OperationKind::reduce_scatter:
        reduction();
        if (operation_.in.count != operation_.out.count * size_) {
          refuse(fmt::format("in has {} elements, but {} parts of out's {} are {}",
                             operation_.in.count, size_, operation_.out.count,
                             operation_.out.count * size_));
        }
        overlap(rank_ * operation_.out.count);
        break;
      case OperationKind::all_gather:
        gather();
        break;
      case OperationKind::broadcast:
        root();
        break;
      case OperationKind::barrier:
        break;
    }
  }

 private:
  [[noreturn]] void refuse(const std::string& why) const {
    throw InvalidArgument(
        operation_.label.empty()
            ? fmt::format("{}: {}", name_of(operation_.kind), why)
            : fmt::format("{} \"{}\": {}", name_of(operation_.kind), operation_.label, why));
  }

  [[noreturn]] void refuse_counts(std::int64_t needed) const {
    refuse(fmt::format("out has {} elements, not {}", operation_.out.count, needed));
  }

  bool uses_out() const {
    return operation_.kind != OperationKind::reduce || rank_ == operation_.root;
  }

  void spans() const {
    const ConstView& in = operation_.in;
    const ConstView out = operation_.out;
    if (in.count < 0 || (uses_out() && out.count < 0)) refuse("a count is negative");
    most(in, operation_.kind == OperationKind::reduce_scatter ? 1 : size_);
    if (uses_out()) most(out, operation_.kind == OperationKind::all_gather ? 1 : size_);
    if (in.count > 0 && in.data == nullptr) refuse("in is a null pointer");
    if (!uses_out()) return;
    if (out.count > 0 && out.data == nullptr) refuse("out is a null pointer");
    if (in.dtype != out.dtype) {
      refuse(fmt::format("in is {}, out is {}", name_of(in.dtype), name_of(out.dtype)));
    }
  }

  /// Refuses more elements of all members together than 64 bits can count in bytes: later code
  /// multiplies them unchecked.
  void most(const ConstView& span, int parts) const {
    if (span.count <= PTRDIFF_MAX / static_cast<std::int64_t>(size_of(span.dtype)) / parts) return;
    refuse(fmt::format("{} elements of {}{} are more than memory can hold", span.count,
                       name_of(span.dtype),
                       parts > 1 ? fmt::format(" from each of {} members", parts) : ""));
  }

  void reduction() const {
    if (!is_defined(operation_.reduction, operation_.in.dtype)) {
      refuse(fmt::format("{} of {} is not defined", name_of(operation_.reduction),
                         name_of(operation_.in.dtype)));
    }
  }

  void root() const {
    if (operation_.root < 0 || operation_.root >= size_) {
      refuse(fmt::format("root {} is not a rank of this group of {}", operation_.root, size_));
    }
  }

  void gather() const {
    const ConstView& in = operation_.in;
    std::int64_t offset = rank_ * in.count;
    std::int64_t total = in.count * size_;
    if (!operation_.counts.empty()) {
      if (operation_.counts.size() != static_cast<std::size_t>(size_)) {
        refuse(fmt::format("{} counts for {} members", operation_.counts.size(), size_));
      }
      offset = total = 0;
      for (int member = 0; member < size_; ++member) {
        const std::int64_t count = operation_.counts[static_cast<std::size_t>(member)];
        if (count < 0) refuse(fmt::format("rank {}'s count is {}", member, count));
        if (__builtin_add_overflow(total, count, &total)) {
          refuse(fmt::format("the members' counts add up to more than {}", INT64_MAX));
        }
        if (member < rank_) offset = total;
      }
      if (in.count != operation_.counts[static_cast<std::size_t>(rank_)]) {
        refuse(fmt::format("in has {} elements, but this rank's count is {}", in.count,
                           operation_.counts[static_cast<std::size_t>(rank_)]));
      }
    }
    if (operation_.out.count != total) refuse_counts(total);
    overlap_of(in, offset, operation_.out);
  }

  /// `out` may be exactly `in` from element `offset` on, else they must be apart.
  void overlap(std::int64_t offset) const { overlap_of(operation_.out, offset, operation_.in); }

  void overlap_of(const ConstView& part, std::int64_t offset, const ConstView& whole) const {
    const auto* part_begin = static_cast<const std::byte*>(part.data);
    const auto* whole_begin = static_cast<const std::byte*>(whole.data);
    if (part.count == 0 || whole.count == 0) return;
    const std::less<const std::byte*> before;
    const bool apart = !before(part_begin, whole_begin + whole.bytes()) ||
                       !before(whole_begin, part_begin + part.bytes());
    if (apart) return;
    if (part_begin != whole_begin + static_cast<std::size_t>(offset) * size_of(whole.dtype)) {
      refuse("in and out overlap, and not in the place that is allowed");
    }
  }

  const Operation& operation_;
  int rank_;
  int size_;
};

}  // namespace

void check_operation(const Operation& operation, int rank, int size) {
  Check(operation, rank, size).run();
}

}  // namespace tutti
