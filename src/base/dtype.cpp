#include "tutti/dtype.h"

namespace tutti {

std::size_t size_of(DType dtype) noexcept {
  switch (dtype) {
    case DType::float64:
    case DType::int64:
      return 8;
    case DType::float32:
    case DType::int32:
      return 4;
    case DType::float16:
    case DType::bfloat16:
      return 2;
    case DType::uint8:
    case DType::boolean:
      return 1;
  }
  return 0;
}

std::string_view name_of(DType dtype) noexcept {
  switch (dtype) {
    case DType::float32:
      return "float32";
    case DType::float64:
      return "float64";
    case DType::float16:
      return "float16";
    case DType::bfloat16:
      return "bfloat16";
    case DType::int32:
      return "int32";
    case DType::int64:
      return "int64";
    case DType::uint8:
      return "uint8";
    case DType::boolean:
      return "boolean";
  }
  return "unknown dtype";
}

std::string_view name_of(Reduction reduction) noexcept {
  switch (reduction) {
    case Reduction::sum:
      return "sum";
    case Reduction::mean:
      return "mean";
    case Reduction::max:
      return "max";
    case Reduction::min:
      return "min";
    case Reduction::product:
      return "product";
    case Reduction::logical_and:
      return "logical_and";
    case Reduction::logical_or:
      return "logical_or";
  }
  return "unknown reduction";
}

bool is_floating(DType dtype) noexcept {
  return dtype == DType::float32 || dtype == DType::float64 || dtype == DType::float16 ||
         dtype == DType::bfloat16;
}

bool is_defined(Reduction reduction, DType dtype) noexcept {
  const bool logical = reduction == Reduction::logical_and || reduction == Reduction::logical_or;
  if (logical || dtype == DType::boolean) return logical && dtype == DType::boolean;
  return reduction != Reduction::mean || is_floating(dtype);
}

}  // namespace tutti
