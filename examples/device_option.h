#pragma once

// --device of the examples: where a model goes, and its batches.

#include <torch/torch.h>

#include <string>
#include <utility>

#include "tutti/tutti.h"

/// "cpu", or a type of libtorch's devices ("cuda"): of these the one of this worker's number on its
/// host. InvalidArgument where there is none, with what has to be loaded.
inline torch::Device device_of(const tutti::Job& job, const std::string& type) {
  const auto asked = [&] {
    try {
      return torch::Device(type);
    } catch (const c10::Error& error) {
      throw tutti::InvalidArgument("--device " + type + ": " + error.what_without_backtrace());
    }
  }();
  if (asked.is_cpu()) return asked;
  const auto device = tutti::local_device(job);
  if (device.type() == asked.type()) return device;
  throw tutti::InvalidArgument("--device " + type + ": libtorch's device here is " + device.str());
}

class ToDevice : public torch::data::transforms::BatchTransform<torch::data::Example<>,
                                                                torch::data::Example<>> {
 public:
  explicit ToDevice(torch::Device device) : device_(device) {}
  torch::data::Example<> apply_batch(torch::data::Example<> batch) override {
    return {batch.data.to(device_), batch.target.to(device_)};
  }

 private:
  torch::Device device_;
};

/// A data set whose batches come to where the model is.
template <class Set>
auto sent_to(const torch::nn::Module& model, Set set) {
  const ToDevice to(model.parameters().front().device());
  return torch::data::datasets::MapDataset<Set, ToDevice>(
      std::move(set), to);  // its map() takes single examples alone
}
