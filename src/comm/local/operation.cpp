#include "comm/local/operation.h"

namespace tutti {

std::string_view name_of(OperationKind kind) noexcept {
  switch (kind) {
    case OperationKind::all_reduce:
      return "all-reduce";
    case OperationKind::reduce:
      return "reduce";
    case OperationKind::reduce_scatter:
      return "reduce-scatter";
    case OperationKind::all_gather:
      return "all-gather";
    case OperationKind::gather:
      return "gather";
    case OperationKind::broadcast:
      return "broadcast";
    case OperationKind::scatter:
      return "scatter";
    case OperationKind::all_to_all:
      return "all-to-all";
    case OperationKind::message:
      return "message";
    case OperationKind::barrier:
      return "barrier";
  }
  return "unknown operation";
}

}  // namespace tutti
