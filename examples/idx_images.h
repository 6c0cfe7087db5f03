#pragma once

// Pictures and their classes from files of MNIST's format (idx), as a data set of torch::data:
// torch's own torch::data::datasets::MNIST, but of any size and number of pixels.

#include <torch/torch.h>

#include <algorithm>
#include <fstream>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

class IdxImages : public torch::data::datasets::Dataset<IdxImages> {
 public:
  /// Reads FOLDER/PART-images-idx3-ubyte and FOLDER/PART-labels-idx1-ubyte; MNIST's parts are
  /// "train" and "t10k".
  IdxImages(const std::string& folder, const std::string& part)
      : images_(read(folder + "/" + part + "-images-idx3-ubyte", 3).unsqueeze(1)),
        targets_(read(folder + "/" + part + "-labels-idx1-ubyte", 1).to(torch::kInt64)) {
    if (images_.size(0) != targets_.size(0)) {
      throw std::runtime_error(part + ": as many labels as images are needed");
    }
  }

  /// Pixels [1, height, width] in 0 … 1, and the class.
  torch::data::Example<> get(std::size_t index) override {
    const auto i = static_cast<std::int64_t>(index);
    return {images_[i].to(torch::kFloat32) / 255, targets_[i]};
  }
  std::optional<std::size_t> size() const override {
    return static_cast<std::size_t>(targets_.size(0));
  }

 private:
  /// Bytes of `dims` dimensions: a number 0x0800 + dims, the sizes, then the values; numbers have
  /// four bytes, the highest first.
  static torch::Tensor read(const std::string& path, int dims) {
    std::ifstream file(path, std::ios::binary);
    const auto number = [&] {
      std::int64_t value = 0;
      for (int byte = 0; byte < 4; ++byte) value = value * 256 + file.get();
      return value;
    };
    if (!file || number() != 0x0800 + dims) throw std::runtime_error("no idx file: " + path);
    std::vector<std::int64_t> sizes;
    for (int dim = 0; dim < dims; ++dim) sizes.push_back(number());
    if (!file || std::ranges::any_of(sizes, [](auto size) { return size < 1 || size > 100000; })) {
      throw std::runtime_error("no idx file: " + path);
    }
    auto values = torch::empty(sizes, torch::kUInt8);
    file.read(reinterpret_cast<char*>(values.data_ptr()), values.numel());
    if (!file) throw std::runtime_error(path + " ends too early");
    return values;
  }

  torch::Tensor images_, targets_;
};
