#pragma once

// A table that is split over workers by its rows: each looks up any of them, and asks the one that
// has it.
//
//   auto words = tutti::ParallelEmbedding(group, {.rows = 10'000'000, .dim = 64});
//   auto x = words->forward(indices);   // [*, 64] of indices [*]
//
// Collective, as ops.h has it: all members call forward() equally often, with indices of any
// shapes, none too, and lead their losses to the result. A look-up sends 8 bytes to the owner, a
// row back, and in backward a row to the owner.
//
// The gradient of the weight is a sparse tensor of the rows that some member looked up, each once,
// ascending; in a DataParallel it is marked as coalesced. What several look-ups give to one row is
// added by rank, then position, so that it depends on the batch alone. torch::optim::SGD and
// Adagrad take it, and leave other rows alone; SGD with momentum moves in each step all rows that
// were looked up so far, as it does with dense gradients, and keeps a velocity of these alone. With
// weight decay both refuse it, and libtorch's other optimizers refuse all sparse gradients: their
// step() throws c10::Error, and has not changed the table.
//
// Threads: as Group. Failure: that of Group. An index that is no row is InvalidArgument on the
// member that has it, and PeerFailed on the others, in this call; the group and the layer work on.

#include <torch/torch.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tutti/group.h"
#include "tutti/split_module.h"

namespace tutti {

struct ParallelEmbeddingOptions {
  std::int64_t rows = 0;
  std::int64_t dim = 0;
  /// A row that is zero at first and has no gradient; negative ones count from the end.
  std::optional<std::int64_t> padding_idx = {};
  /// The seed of the initial values, which are distributed as those of torch::nn::Embedding and the
  /// same for any number of members; torch's generator of rank 0 draws it if absent.
  std::optional<std::uint64_t> seed = {};
  torch::ScalarType dtype = torch::kFloat32;
};

class ParallelEmbeddingImpl : public SplitModule {
 public:
  /// Member r has share_of(rows, r, size()). Collective: other options on another member are a
  /// Mismatch.
  ParallelEmbeddingImpl(const Group& group, const ParallelEmbeddingOptions& options);

  /// Integers [*] of this member, of 32 or 64 bits, to their rows, [*, dim].
  torch::Tensor forward(const torch::Tensor& indices);

  std::vector<SplitTensor> split_tensors() override;
  /// This member's first row.
  std::int64_t first() const { return first_; }
  const ParallelEmbeddingOptions& options() const { return options_; }

  torch::Tensor weight;  ///< [own rows, dim]

 private:
  std::int64_t owner_of(std::int64_t row) const;
  std::string refusal(const torch::Tensor& indices) const;

  ParallelEmbeddingOptions options_;
  std::int64_t first_ = 0;
};

/// A module holder, as TORCH_MODULE makes them, that takes options in braces, too.
class ParallelEmbedding : public torch::nn::ModuleHolder<ParallelEmbeddingImpl> {
 public:
  using torch::nn::ModuleHolder<ParallelEmbeddingImpl>::ModuleHolder;
  using Impl = ParallelEmbeddingImpl;
  ParallelEmbedding(const Group& group, const ParallelEmbeddingOptions& options)
      : ModuleHolder(std::make_shared<ParallelEmbeddingImpl>(group, options)) {}
};

}  // namespace tutti
