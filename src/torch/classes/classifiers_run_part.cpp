#include "torch/classes/classifiers_run_part.h"

#include <fmt/format.h>

#include "comm/gather_bytes.h"
#include "memory/memory_need.h"
#include "run/files/checkpoint_store.h"
#include "torch/classes/classifier_file.h"
#include "torch/run/stored_tensors.h"
#include "tutti/error.h"

namespace tutti {

void ClassifiersRunPart::bring() {
  digests_.clear();
  for (const auto& [name, layer] : layers()) {
    const ClassifierFile own(layer->own());
    for (std::size_t which = 0; which < own.tensors(); ++which) {
      digests_.emplace_back(fmt::format("{}.{}", name, own.tensor_name(which)), own.digest(which));
    }
  }
}

void ClassifiersRunPart::hash(Sha256& hash) const {
  for (const auto& [name, digest] : digests_) {
    hash.update(name.data(), name.size());
    hash.update(digest.data(), digest.size());
  }
}

void ClassifiersRunPart::gather(const Gather& /*gather*/) {
  whole_.clear();
  for (const auto& [name, layer] : layers()) {
    const ClassifierFile own(layer->own());
    std::string refusal;
    if (layer->group().rank() == 0) {
      const auto what = fmt::format("a checkpoint of the split layer \"{}\"", name);
      refusal =
          refuse_memory(layers_->job().system(),
                        {.bytes_per_worker = layer->bytes_of_all(), .workers = 1, .what = what});
    }
    const auto all = gather_texts(layer->group(), refusal, {});
    if (!all[0].empty()) throw OutOfMemory(all[0]);
    for (std::size_t which = 0; which < own.tensors(); ++which) {
      auto whole = own.whole(which);
      if (whole.defined()) {
        whole_.emplace_back(fmt::format("{}.{}", name, own.tensor_name(which)), std::move(whole));
      }
    }
  }
}

void ClassifiersRunPart::list(StateTensors& tensors) const {
  if (layers_ != nullptr) append_views(tensors[StateFile::split], whole_);
}

void ClassifiersRunPart::write(nlohmann::json& state) const {
  for (const auto& [name, layer] : layers()) {
    state[kSplitLayers][name] = {{"facts", layer->own().settings().facts()},
                                 {"updates", layer->updates()}};
  }
}

void ClassifiersRunPart::check(const nlohmann::json& state) const {
  const auto found = state.value(kSplitLayers, nlohmann::json::object());
  if (found.size() != layers().size()) {
    throw InvalidArgument(
        fmt::format("the checkpoint has {} layers that are split over workers, the model {}",
                    found.size(), layers().size()));
  }
  for (const auto& [name, layer] : layers()) {
    const auto differences = facts_diff(found.at(name).at("facts").get<RunFingerprint>(),
                                        layer->own().settings().facts());
    if (differences.empty()) continue;
    throw InvalidArgument(fmt::format("the split layer \"{}\": {}", name, differences));
  }
}

std::vector<std::byte> ClassifiersRunPart::read(const Checkpoint& checkpoint) const {
  if (layers_ == nullptr) return {};
  file_.emplace(checkpoint.file(name_of(StateFile::split)));
  for (const auto& [name, layer] : layers()) {
    ClassifierFile(layer->own()).check(*file_, checkpoint.folder().string(), name + ".");
  }
  return {};
}

void ClassifiersRunPart::restore(const nlohmann::json& state, std::span<const std::byte> /*read*/) {
  for (const auto& [name, layer] : layers()) {
    ClassifierFile(layer->own())
        .fill(file_ ? &*file_ : nullptr, name + ".",
              state.at(kSplitLayers).at(name).at("updates").get<std::int64_t>());
  }
  file_.reset();
}

}  // namespace tutti
