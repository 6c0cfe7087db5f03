#include "run/files/samples.h"

#include <utility>

namespace tutti::test {

TensorToWrite Samples::tensor(std::string name, StoredType type, std::vector<std::int64_t> shape) {
  const auto size = tutti::bytes_of(type, shape).value();
  auto& bytes = bytes_.emplace_back(size);
  for (std::byte& byte : bytes) {
    state_ = state_ * 1664525U + 1013904223U;
    byte = static_cast<std::byte>(state_ >> 24);
    if (type == StoredType::BOOL) byte &= std::byte{1};
  }
  return {std::move(name), type, std::move(shape), bytes};
}

SampleCheckpoint::SampleCheckpoint(std::int64_t step, unsigned seed) : samples(seed) {
  content.step = step;
  content.facts = {{"seed", std::to_string(seed)}, {"shards", "8"}, {"threads", "1"}};
  content.state = {{"epoch", 3}, {"loss_scale", 65536.5}, {"position", {1, 2, 3}}};
  content.files = {{.name = "model.safetensors",
                    .tensors = {samples.tensor("a.weight", StoredType::F32, {3, 5}),
                                samples.tensor("a.bias", StoredType::F64, {3})}},
                   {.name = "optimizer.safetensors",
                    .tensors = {samples.tensor("step", StoredType::I64, {})},
                    .metadata = {{"optimizer", "adam"}}}};
}

TensorBytes bytes_of(const CheckpointContent& content) {
  TensorBytes found;
  for (const auto& file : content.files)
    for (const auto& tensor : file.tensors)
      found[file.name + "/" + tensor.name].assign(tensor.data.begin(), tensor.data.end());
  return found;
}

TensorBytes bytes_of(const Checkpoint& checkpoint) {
  TensorBytes found;
  for (const auto& [name, digest] : checkpoint.manifest().files) {
    const SafetensorsFile file = checkpoint.file(name);
    for (const TensorEntry& tensor : file.tensors()) {
      auto& bytes = found[name + "/" + tensor.name];
      bytes.resize(tensor.bytes);
      file.read(tensor, bytes);
    }
  }
  return found;
}

}  // namespace tutti::test
