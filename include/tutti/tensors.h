#pragma once

// Tensors in the core's vocabulary: element types, collectives on tensors, and the hash by which a
// user compares two models.
//
// Tensors on a device (a GPU) are moved by way of the host (docs/gpu.md): what is given is read
// once the device has computed it, and results are there for what the current stream is given next.
//
// Threads and failure: as the functions of group.h. A tensor that is not dense (holes, overlap), or
// of an element type that DType lacks, is Unsupported, and so is one that is written to, or looked
// at by view_of(), with torch's negative or conjugate bit. view_of() takes tensors on the CPU
// alone. What a device reports is DeviceFailed.

#include <torch/torch.h>

#include <string>
#include <vector>

#include "tutti/group.h"

namespace tutti {

using TensorList = std::vector<torch::Tensor>;

/// The type of its numbers: float32 for complex64, whose elements are two of them, float64 for
/// complex128. Unsupported for quantised and other types that Tutti does not move.
DType dtype_of(const torch::Tensor& tensor);
torch::ScalarType scalar_type_of(DType dtype);

/// The tensor's elements in memory order. The tensor must be dense: contiguous, channels-last or
/// any other permutation without holes. Complex ones are two numbers each, the real part first.
View view_of(const torch::Tensor& tensor);

// Collectives on dense tensors, in place or into `out`. Members compare shapes and strides too, but
// for the numbers of rows that may differ: the same elements must meet. Written tensors' version
// counters are bumped. Complex tensors have sum and mean, of each part by itself; any other
// reduction of them is Unsupported.
void all_reduce(const Group& group, torch::Tensor& inout, Reduction reduction,
                const CollectiveOptions& options = {});
void reduce(const Group& group, const torch::Tensor& in, torch::Tensor& out, Reduction reduction,
            int root, const CollectiveOptions& options = {});
/// `in` is [size · n, …] contiguous, `out` [n, …].
void reduce_scatter(const Group& group, const torch::Tensor& in, torch::Tensor& out,
                    Reduction reduction, const CollectiveOptions& options = {});
/// Returns [size · n, …] for contiguous [n, …].
torch::Tensor all_gather(const Group& group, const torch::Tensor& in,
                         const CollectiveOptions& options = {});
/// Members may have different n; the result is their concatenation along dim 0 in rank order.
torch::Tensor all_gather_variable(const Group& group, const torch::Tensor& in,
                                  const CollectiveOptions& options = {});
void broadcast(const Group& group, torch::Tensor& inout, int root,
               const CollectiveOptions& options = {});
/// Started and not waited for: the tensor must not be touched before Work::wait(). Of a tensor on a
/// device nothing waits here; the others hear of the call once its values have come to the host,
/// and Work::wait() returns when the copy back is queued on the device.
[[nodiscard]] Work start_all_reduce(const Group& group, torch::Tensor& inout, Reduction reduction,
                                    const CollectiveOptions& options = {});

/// A zero-filled contiguous tensor in memory that every member sees: collectives on it move no
/// extra byte. Collective.
torch::Tensor shared_zeros(const Group& group, torch::IntArrayRef sizes, torch::ScalarType dtype);

/// SHA-256, in 64 hexadecimal digits, of the bytes of all parameters in registration order, each
/// preceded by its name.
std::string parameters_sha256(const torch::nn::Module& module);

}  // namespace tutti
