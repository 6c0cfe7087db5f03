#include "tutti/tensors.h"

#include <fmt/format.h>

#include <memory>
#include <optional>
#include <utility>

#include "base/check.h"
#include "comm/device_copy.h"
#include "kernels/hash.h"
#include "torch/model/layout.h"
#include "torch/model/moved_tensor.h"
#include "torch/model/real_numbers.h"
#include "torch/model/resolved.h"
#include "torch/model/tensor_at.h"
#include "tutti/error.h"

namespace tutti {
namespace {

/// Complex numbers have the reductions that are those of each part by itself.
void require_defined(const torch::Tensor& tensor, Reduction reduction) {
  if (!tensor.is_complex() || reduction == Reduction::sum || reduction == Reduction::mean) return;
  throw Unsupported(
      fmt::format("{} of complex numbers: sum and mean are what they have", name_of(reduction)));
}

/// What is read alone may be a view of any kind.
torch::Tensor as_read(const torch::Tensor& tensor) {
  require_strided(tensor);
  return resolved(tensor);
}

const torch::Tensor& require_contiguous(const torch::Tensor& tensor, std::string_view what) {
  require_strided(tensor);
  if (!tensor.is_contiguous()) {
    throw Unsupported(fmt::format("{}: the tensor must be contiguous", what));
  }
  return tensor;
}

}  // namespace

DType dtype_of(const torch::Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case torch::kFloat32:
    case torch::kComplexFloat:
      return DType::float32;
    case torch::kFloat64:
    case torch::kComplexDouble:
      return DType::float64;
    case torch::kFloat16:
      return DType::float16;
    case torch::kBFloat16:
      return DType::bfloat16;
    case torch::kInt32:
      return DType::int32;
    case torch::kInt64:
      return DType::int64;
    case torch::kUInt8:
      return DType::uint8;
    case torch::kBool:
      return DType::boolean;
    default:
      throw Unsupported(fmt::format("element type {}", c10::toString(tensor.scalar_type())));
  }
}

torch::ScalarType scalar_type_of(DType dtype) {
  switch (dtype) {
    case DType::float32:
      return torch::kFloat32;
    case DType::float64:
      return torch::kFloat64;
    case DType::float16:
      return torch::kFloat16;
    case DType::bfloat16:
      return torch::kBFloat16;
    case DType::int32:
      return torch::kInt32;
    case DType::int64:
      return torch::kInt64;
    case DType::uint8:
      return torch::kUInt8;
    case DType::boolean:
      return torch::kBool;
  }
  TUTTI_CHECK(false, "unknown element type {}", static_cast<int>(dtype));
}

View view_of(const torch::Tensor& tensor) {
  require_dense(tensor);
  require_on_cpu(tensor);
  return {tensor.data_ptr(), count_of_reals(tensor), dtype_of(tensor)};
}

void all_reduce(const Group& group, torch::Tensor& inout, Reduction reduction,
                const CollectiveOptions& options) {
  MovedTensor moved(group, inout, options);
  require_defined(inout, reduction);
  const Layout layout(inout);
  group.all_reduce(moved.values(), reduction, layout.with(options));
  moved.give();
}

void reduce(const Group& group, const torch::Tensor& read, torch::Tensor& out, Reduction reduction,
            int root, const CollectiveOptions& options) {
  const auto in = as_read(read);
  require_defined(in, reduction);
  const bool receives = group.rank() == root;
  MovedTensor given(group, in, options);
  std::optional<MovedTensor> result;
  if (receives) result.emplace(group, out, options);
  const Layout layout(in);
  if (receives && Layout(out) != layout) {
    throw InvalidArgument("reduce: the result has other sizes or strides than what is reduced");
  }
  group.reduce(given.values(), result ? result->room() : View{nullptr, 0, dtype_of(in)}, reduction,
               root, layout.with(options));
  if (result) result->give();
}

void reduce_scatter(const Group& group, const torch::Tensor& read, torch::Tensor& out,
                    Reduction reduction, const CollectiveOptions& options) {
  const auto in = as_read(read);
  require_defined(in, reduction);
  MovedTensor given(group, require_contiguous(in, "reduce_scatter"), options);
  MovedTensor result(group, require_contiguous(out, "reduce_scatter"), options);
  const Layout layout(in);
  group.reduce_scatter(given.values(), result.room(), reduction, layout.with(options));
  result.give();
}

torch::Tensor all_gather(const Group& group, const torch::Tensor& read,
                         const CollectiveOptions& options) {
  const auto in = as_read(read);
  MovedTensor given(group, require_contiguous(in, "all_gather"), options);
  if (in.dim() == 0) throw InvalidArgument("all_gather: a scalar has no dim 0; use unsqueeze(0)");
  auto sizes = in.sizes().vec();
  sizes[0] *= group.size();
  auto out = torch::empty(sizes, in.options().requires_grad(false));
  MovedTensor result(group, out, options);
  group.all_gather(given.values(), result.room(), Layout(in).with(options));
  result.give();
  return out;
}

torch::Tensor all_gather_variable(const Group& group, const torch::Tensor& read,
                                  const CollectiveOptions& options) {
  const auto in = as_read(read);
  MovedTensor given(group, require_contiguous(in, "all_gather_variable"), options);
  if (in.dim() == 0) throw InvalidArgument("all_gather_variable: a scalar has no dim 0");
  const std::int64_t rows = in.size(0);
  std::vector<std::int64_t> all_rows(static_cast<std::size_t>(group.size()));
  group.all_gather({&rows, 1, DType::int64}, {all_rows.data(), group.size(), DType::int64},
                   options);
  auto sizes = in.sizes().vec();
  sizes[0] = 1;
  const std::int64_t row = c10::multiply_integers(sizes) * reals_of_each(in);
  std::vector<std::int64_t> counts;
  sizes[0] = 0;
  for (const auto n : all_rows) {
    counts.push_back(n * row);
    sizes[0] += n;
  }
  auto out = torch::empty(sizes, in.options().requires_grad(false));
  MovedTensor result(group, out, options);
  group.all_gather_variable(given.values(), result.room(), counts,
                            Layout::of_row(in).with(options));
  result.give();
  return out;
}

void broadcast(const Group& group, torch::Tensor& inout, int root,
               const CollectiveOptions& options) {
  MovedTensor moved(group, inout, options);
  const Layout layout(inout);
  group.broadcast(group.rank() == root ? moved.values() : moved.room(), root, layout.with(options));
  moved.give();
}

Work start_all_reduce(const Group& group, torch::Tensor& inout, Reduction reduction,
                      const CollectiveOptions& options) {
  if (!inout.defined() || inout.is_cpu()) {
    const auto view = view_of(inout);
    require_defined(inout, reduction);
    const Layout layout(inout);
    note_written(inout);
    return group.start().all_reduce(view, reduction, layout.with(options));
  }
  const auto copy = std::make_shared<HostCopy>(group, inout, options);
  require_defined(inout, reduction);
  const Layout layout(inout);
  const auto view = copy->coming();
  if (!inout.is_inference()) inout.unsafeGetTensorImpl()->bump_version();
  return start_all_reduce(group, view, reduction, layout.with(options),
                          {.input = copy,
                           .original = {inout.const_data_ptr(), view.count, view.dtype},
                           .give = [copy] { copy->give(); }});
}

torch::Tensor shared_zeros(const Group& group, torch::IntArrayRef sizes, torch::ScalarType dtype) {
  const auto count = c10::multiply_integers(sizes);
  const auto bytes = static_cast<std::size_t>(count) * c10::elementSize(dtype);
  auto memory = group.allocate(bytes, "a shared tensor");
  auto* const data = memory.data();
  return tensor_at(data, sizes, std::nullopt, dtype, std::move(memory));
}

std::string parameters_sha256(const torch::nn::Module& module) {
  Sha256 hash;
  for (const auto& item : module.named_parameters()) {
    const auto value = resolved(item.value().detach()).contiguous().cpu();
    hash.update(item.key().data(), item.key().size());
    hash.update(value.data_ptr(), value.nbytes());
  }
  return hash.hex();
}

}  // namespace tutti
