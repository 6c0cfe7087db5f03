#pragma once

// A layer as a whole: the pieces of all members, in order, hashed, in rank 0's memory, or in a
// file.
//
// Threads: one. Failure: what the public header says of save() and load(); that of the group's
// collectives.

#include <torch/torch.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "run/files/safetensors_reader.h"
#include "run/files/safetensors_writer.h"
#include "torch/classes/classifier.h"

namespace tutti {

class ClassifierFile {
 public:
  /// Keeps a reference.
  explicit ClassifierFile(Classifier& layer) : layer_(layer) {}

  /// The weights, then the rule's states.
  std::size_t tensors() const { return 1 + layer_.settings().rule.states.size(); }
  std::string tensor_name(std::size_t which) const;
  /// The tensors of the own pieces, one after another.
  std::vector<SplitTensor> split_tensors() const;
  /// SHA-256 of the weights' name and bytes. Collective.
  std::string sha256() const { return digest(0, tensor_name(0)); }
  /// SHA-256 of a tensor's bytes, behind `name`. Collective.
  std::string digest(std::size_t which, std::string_view name = {}) const;
  /// On the first member, undefined on the others. Collective.
  torch::Tensor whole(std::size_t which) const;
  /// InvalidArgument where the file's tensors of these names, behind `prefix`, do not fit.
  void check(const SafetensorsFile& file, const std::string& where,
             const std::string& prefix) const;
  /// Takes them. The first member gives the file. Collective.
  void fill(const SafetensorsFile* file, const std::string& prefix, std::int64_t updates) const;
  void save(const std::string& file) const;
  void load(const std::string& file) const;

 private:
  torch::ScalarType type_of(std::size_t which) const;
  StoredType stored_type_of(std::size_t which) const;
  /// The weights, or a state, of an own piece.
  torch::Tensor& tensor(std::size_t which, ClassPiece& piece) const;
  enum class To : std::uint8_t { first, owner };
  /// Moves the pieces one by one, to the first member or from it, which calls `each` for the bytes
  /// that have come, or are about to go. Collective.
  void move_pieces(std::size_t which, To to,
                   const std::function<void(std::span<std::byte>)>& each) const;

  Classifier& layer_;
};

}  // namespace tutti
