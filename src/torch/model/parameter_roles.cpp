#include "torch/model/parameter_roles.h"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_set>

#include "sync/plan/row_list.h"
#include "tutti/error.h"

namespace tutti {
namespace {

using Names = std::vector<std::string>;

bool holds(const ParameterRoles::Where& where, const Names& names) {
  return where && std::ranges::any_of(names, where);
}

/// The weights of a module's embeddings.
struct EmbeddingWeights {
  std::unordered_set<const void*> sparse;        ///< whose gradients are row-sparse
  std::unordered_set<const void*> renormalised;  ///< that forward changes
};

EmbeddingWeights embedding_weights_of(const torch::nn::Module* module) {
  EmbeddingWeights found;
  const auto take = [&](const auto* embedding) {
    if (embedding == nullptr) return;
    const void* const weight = embedding->weight.unsafeGetTensorImpl();
    if (embedding->options.sparse()) found.sparse.insert(weight);
    if (embedding->options.max_norm()) found.renormalised.insert(weight);
  };
  const auto look = [&](const torch::nn::Module& one) {
    take(one.as<torch::nn::EmbeddingImpl>());
    take(one.as<torch::nn::EmbeddingBagImpl>());
  };
  if (module != nullptr) module->apply(look);
  return found;
}

/// The owner that a parameter has by one of its names; −1: none.
std::int64_t owner_of(const ParameterRoles& roles, const Names& names) {
  std::optional<std::int64_t> owner;
  const auto& name = names.front();
  for (const auto& one : names) {
    const auto found = roles.placement ? roles.placement(one) : std::nullopt;
    if (owner && found && *owner != *found) {
      throw InvalidArgument(
          fmt::format("\"{}\" is also called \"{}\", and has two owners: {} and {}", name, one,
                      *owner, *found));
    }
    if (found) owner = found;
  }
  if (owner && *owner < 0) {
    throw InvalidArgument(fmt::format("\"{}\" has the owner {}: they count from 0", name, *owner));
  }
  return owner.value_or(-1);
}

void require_rows(const std::string& name, const torch::Tensor& tensor) {
  if (tensor.dim() == 0) throw InvalidArgument(fmt::format("row-sparse \"{}\" has no rows", name));
  if (!tensor.is_contiguous() || tensor.size(0) > kMaxRows) {
    throw Unsupported(
        fmt::format("row-sparse \"{}\" has more than {} rows, or they do not lie one "
                    "after the other",
                    name, kMaxRows));
  }
}

}  // namespace

std::size_t FoundRoles::owned() const {
  return static_cast<std::size_t>(
      std::ranges::count_if(owners, [](std::int64_t owner) { return owner >= 0; }));
}

FoundRoles find_roles(const ParameterRoles& roles, const torch::nn::Module* module,
                      const NamedTensors& parameters, const std::vector<Names>& names,
                      const NamedTensors& buffers) {
  FoundRoles found;
  bool any_row_sparse = false;
  bool any_per_replica = false;
  const auto embeddings = embedding_weights_of(module);
  for (const auto& item : buffers) {
    found.replica_buffers.push_back(roles.per_replica && roles.per_replica(item.first));
    any_per_replica = any_per_replica || found.replica_buffers.back();
  }
  for (std::size_t p = 0; p < parameters.size(); ++p) {
    const auto& [name, tensor] = parameters[p];
    const void* const place = tensor.unsafeGetTensorImpl();
    if (embeddings.renormalised.contains(place)) {
      throw Unsupported(
          fmt::format("\"{}\" is an embedding with max_norm, which changes it in forward, on each "
                      "worker by what this one looks up",
                      name));
    }
    const bool declared = holds(roles.row_sparse, names[p]);
    any_row_sparse = any_row_sparse || declared;
    const bool is_row_sparse =
        (declared || embeddings.sparse.contains(place)) && tensor.numel() > 0;
    const bool is_per_replica = holds(roles.per_replica, names[p]);
    any_per_replica = any_per_replica || is_per_replica;
    const auto owner = owner_of(roles, names[p]);
    found.row_sparse.push_back(is_row_sparse);
    found.per_replica.push_back(is_per_replica);
    found.owners.push_back(owner);
    if (is_per_replica && owner >= 0) {
      throw InvalidArgument(fmt::format("\"{}\" has an owner, and is per replica", name));
    }
    if (!is_row_sparse) continue;
    if (is_per_replica) throw Unsupported(fmt::format("row-sparse \"{}\" is per replica", name));
    if (tensor.is_complex()) {
      throw Unsupported(fmt::format("row-sparse \"{}\" is of complex numbers", name));
    }
    require_rows(name, tensor);
  }
  if (roles.row_sparse && !any_row_sparse) found.unmatched.emplace_back("row_sparse");
  if (roles.per_replica && !any_per_replica) found.unmatched.emplace_back("per_replica");
  if (roles.placement && found.owned() == 0) found.unmatched.emplace_back("placement");
  return found;
}

}  // namespace tutti
