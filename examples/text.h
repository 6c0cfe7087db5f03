#pragma once

// A text file as numbers, for models of its letters.

#include <torch/torch.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "tutti/error.h"

/// The bytes of a file as numbers 0 … alphabet_size()-1, in ascending order of the bytes.
class Text {
 public:
  explicit Text(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    if (!file) throw tutti::IoError(errno, "cannot read the text " + path);
    const std::string bytes{std::istreambuf_iterator<char>(file), {}};
    alphabet_ = bytes;
    std::sort(alphabet_.begin(), alphabet_.end());
    alphabet_.erase(std::unique(alphabet_.begin(), alphabet_.end()), alphabet_.end());
    for (const char c : bytes) codes_.push_back(static_cast<std::int64_t>(alphabet_.find(c)));
  }
  std::int64_t size() const { return static_cast<std::int64_t>(codes_.size()); }
  std::int64_t alphabet_size() const { return static_cast<std::int64_t>(alphabet_.size()); }
  char letter(std::int64_t code) const { return alphabet_[static_cast<std::size_t>(code)]; }

  /// [rows, length + 1] codes at random places.
  torch::Tensor draw(std::int64_t rows, std::int64_t length, std::mt19937_64& random) const {
    std::uniform_int_distribution<std::int64_t> place(0, size() - length - 1);
    auto batch = torch::empty({rows, length + 1}, torch::kInt64);
    for (std::int64_t r = 0; r < rows; ++r) {
      std::copy_n(codes_.begin() + place(random), length + 1,
                  batch.data_ptr<std::int64_t>() + r * (length + 1));
    }
    return batch;
  }

 private:
  std::string alphabet_;
  std::vector<std::int64_t> codes_;
};
