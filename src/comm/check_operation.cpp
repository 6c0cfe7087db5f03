#include "comm/check_operation.h"

#include <cstdint>
#include <functional>
#include <span>
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
        if (uses_out()) {
          if (operation_.out.count != operation_.in.count) refuse_counts(operation_.in.count);
          overlap(0);
        }
        break;
      case OperationKind::reduce_scatter:
        reduction();
        scatter();
        break;
      case OperationKind::scatter:
        root();
        scatter();
        break;
      case OperationKind::gather:
        root();
        gather();
        break;
      case OperationKind::all_gather:
        gather();
        break;
      case OperationKind::broadcast:
      case OperationKind::message:
        root();
        break;
      case OperationKind::all_to_all:
        exchange();
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

  /// A broadcast has where the data go as `in` as well.
  bool uses_in() const {
    return operation_.kind != OperationKind::scatter || rank_ == operation_.root;
  }
  bool uses_out() const { return !is_to_root(operation_.kind) || rank_ == operation_.root; }

  void spans() const {
    const ConstView& in = operation_.in;
    const ConstView out = operation_.out;
    const bool is_joined = operation_.kind == OperationKind::all_gather ||
                           operation_.kind == OperationKind::gather ||
                           operation_.kind == OperationKind::all_to_all;
    if ((uses_in() && in.count < 0) || (uses_out() && out.count < 0)) refuse("a count is negative");
    if (uses_in()) most(in, gives_parts(operation_.kind) ? 1 : size_);
    if (uses_out()) most(out, is_joined ? 1 : size_);
    if (uses_in() && in.count > 0 && in.data == nullptr) refuse("in is a null pointer");
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

  /// Where this member's part begins among those of all, and the elements of all.
  struct Parts {
    std::int64_t offset;
    std::int64_t total;
  };
  Parts parts_of(std::span<const std::int64_t> counts) const {
    if (counts.size() != static_cast<std::size_t>(size_)) {
      refuse(fmt::format("{} counts for {} members", counts.size(), size_));
    }
    Parts parts{0, 0};
    for (int member = 0; member < size_; ++member) {
      const std::int64_t count = counts[static_cast<std::size_t>(member)];
      if (count < 0) refuse(fmt::format("rank {}'s count is {}", member, count));
      if (__builtin_add_overflow(parts.total, count, &parts.total)) {
        refuse(fmt::format("the members' counts add up to more than {}", INT64_MAX));
      }
      if (member < rank_) parts.offset = parts.total;
    }
    return parts;
  }

  /// The parts of which this member's is `own`, named so.
  Parts parts_with(const ConstView& own, std::string_view name) const {
    const auto& counts = operation_.counts;
    if (!operation_.is_variable) return {rank_ * own.count, size_ * own.count};
    const Parts parts = parts_of(counts);
    if (const auto count = counts[static_cast<std::size_t>(rank_)]; own.count != count) {
      refuse(
          fmt::format("{} has {} elements, but this rank's count is {}", name, own.count, count));
    }
    return parts;
  }

  void gather() const {
    const Parts parts = parts_with(operation_.in, "in");
    if (!uses_out()) return;
    if (operation_.out.count != parts.total) refuse_counts(parts.total);
    overlap_of(operation_.in, parts.offset, operation_.out);
  }

  void scatter() const {
    const Parts parts = parts_with(operation_.out, "out");
    if (!uses_in()) return;
    if (operation_.in.count != parts.total) {
      refuse(!operation_.is_variable
                 ? fmt::format("in has {} elements, but {} parts of out's {} are {}",
                               operation_.in.count, size_, operation_.out.count, parts.total)
                 : fmt::format("in has {} elements, but the members' counts add up to {}",
                               operation_.in.count, parts.total));
    }
    overlap(parts.offset);
  }

  void exchange() const {
    const ConstView& in = operation_.in;
    const ConstView out = operation_.out;
    if (!operation_.is_variable) {
      if (in.count % size_ != 0) {
        refuse(fmt::format("in has {} elements, not a multiple of {} members", in.count, size_));
      }
      if (out.count != in.count) refuse_counts(in.count);
    } else {
      const auto given = parts_of(operation_.counts).total;
      const auto taken = parts_of(operation_.taken).total;
      if (in.count != given) {
        refuse(fmt::format("in has {} elements, but its counts add up to {}", in.count, given));
      }
      if (out.count != taken) {
        refuse(fmt::format("out has {} elements, but its counts add up to {}", out.count, taken));
      }
    }
    if (are_apart(in, out)) return;
    refuse("in and out overlap");
  }

  /// `out` may be exactly `in` from element `offset` on, else they must be apart.
  void overlap(std::int64_t offset) const { overlap_of(operation_.out, offset, operation_.in); }

  void overlap_of(const ConstView& part, std::int64_t offset, const ConstView& whole) const {
    if (are_apart(part, whole)) return;
    const auto* const allowed = static_cast<const std::byte*>(whole.data) +
                                static_cast<std::size_t>(offset) * size_of(whole.dtype);
    if (part.data != allowed) refuse("in and out overlap, and not in the place that is allowed");
  }

  static bool are_apart(const ConstView& one, const ConstView& other) {
    if (one.count == 0 || other.count == 0) return true;
    const auto* one_begin = static_cast<const std::byte*>(one.data);
    const auto* other_begin = static_cast<const std::byte*>(other.data);
    const std::less<const std::byte*> before;
    return !before(one_begin, other_begin + other.bytes()) ||
           !before(other_begin, one_begin + one.bytes());
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
