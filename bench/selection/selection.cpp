// Selection by magnitude, and conversion to 16 bits and back, on one thread; beside them rivals and
// what memory allows. Contestants take turns within each round, so that all see the same machine.
//
//   bench_selection ELEMENTS ROUNDS SLOW_ROUNDS
//
// Prints nanoseconds of each round by contestant, as JSON. The slow ones, which take seconds where
// elements are many, take part in the first SLOW_ROUNDS. Others run once before they are timed.

#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <iostream>
#include <string>
#include <utility>
#include <vector>

#include "kernels/fold.h"
#include "kernels/int8_blocks.h"
#include "kernels/select.h"
#include "selection/sweep.h"

namespace {

constexpr std::pair<double, const char*> kShares[] = {{0.01, "0.010"}, {0.001, "0.001"}};
constexpr float kThreshold = 2.5758F;  // 1 % of a normal distribution lies at or beyond it.

struct Contestant {
  std::string name;
  bool slow = false;
  std::function<void()> work;
  std::vector<double> nanoseconds = {};
};

std::string named(const char* what, const char* of) { return std::string(what).append(of); }

double time_of(const std::function<void()>& work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - begin).count();
}

class Selection {
 public:
  explicit Selection(std::int64_t count)
      : tensor_(torch::randn({count})),
        values_(tensor_.data_ptr<float>()),
        count_(count),
        indices_(static_cast<std::size_t>(count) / 50),
        selected_(indices_.size()),
        pairs_(static_cast<std::size_t>(count)),
        widened_(static_cast<std::size_t>(count)),
        halves_(static_cast<std::size_t>(count)),
        blocks_(tutti::int8_bytes(count)) {}

  std::vector<Contestant> contestants() {
    std::vector<Contestant> all;
    all.push_back({"three sweeps", false, [this] {
                     for (int i = 0; i < 3; ++i) seen_ = sweep(values_, pairs_.size());
                   }});
    for (const auto& [share, of] : kShares) {
      const auto k = static_cast<std::int64_t>(share * static_cast<double>(count_));
      all.push_back({named("select_largest ", of), false, [this, k] { largest(k); }});
      all.push_back({named("at::topk ", of), true, [this, k] { topk(k); }});
      all.push_back({named("std::nth_element ", of), true, [this, k] { nth_element(k); }});
    }
    all.push_back({"sweep", false, [this] { seen_ = sweep(values_, pairs_.size()); }});
    all.push_back({"select_at_least", false, [this] { at_least(); }});
    for (const auto& [name, type] :
         {std::pair{"float16", tutti::DType::float16}, {"bfloat16", tutti::DType::bfloat16}}) {
      all.push_back({named("to ", name), false, [this, type = type] {
                       tutti::round_into(halves_.data(), type, values_, tutti::DType::float32,
                                         count_);
                     }});
      all.push_back({named("from ", name), false, [this, type = type] {
                       tutti::scale_into(widened_.data(), tutti::DType::float32, halves_.data(),
                                         type, count_, 1);
                     }});
    }
    all.push_back({"to int8", false, [this] { tutti::to_int8(blocks_.data(), values_, count_); }});
    all.push_back({"from int8", false,
                   [this] { tutti::from_int8(widened_.data(), blocks_.data(), 0, count_); }});
    // Reads and writes 6 bytes per element in all, as a conversion to 16 bits does.
    all.push_back(
        {"memcpy", false, [this] { std::memcpy(widened_.data(), values_, 3 * pairs_.size()); }});
    return all;
  }

 private:
  void expect(bool agrees, const char* who) {
    if (agrees) return;
    std::cerr << who << " found something else\n";
    std::exit(1);
  }

  void largest(std::int64_t k) {
    const auto found =
        tutti::select_largest(values_, count_, k, indices_.data(), selected_.data(), scratch_);
    expect(found.count == k, "select_largest");
  }

  void topk(std::int64_t k) {
    const auto found = std::get<0>(torch::topk(tensor_.abs(), k));
    expect(found[-1].item<float>() == smallest_selected(k), "at::topk");
  }

  void nth_element(std::int64_t k) {
    for (std::size_t i = 0; i < pairs_.size(); ++i) {
      pairs_[i] = {std::fabs(values_[i]), static_cast<std::uint32_t>(i)};
    }
    const auto nth = pairs_.begin() + (k - 1);
    std::nth_element(pairs_.begin(), nth, pairs_.end(), [](const auto& a, const auto& b) {
      return a.first != b.first ? a.first > b.first : a.second < b.second;
    });
    expect(nth->first == smallest_selected(k), "std::nth_element");
  }

  /// Of what select_largest, whose turn was before, left.
  float smallest_selected(std::int64_t k) const {
    float smallest = INFINITY;
    for (std::int64_t i = 0; i < k; ++i) {
      smallest = std::min(smallest, std::fabs(selected_[static_cast<std::size_t>(i)]));
    }
    return smallest;
  }

  void at_least() {
    const auto capacity = static_cast<std::int64_t>(indices_.size());
    const auto found = tutti::select_at_least(values_, count_, kThreshold, indices_.data(),
                                              selected_.data(), capacity);
    expect(found.count > count_ / 200 && found.count <= capacity, "select_at_least");
  }

  torch::Tensor tensor_;
  const float* values_;
  std::int64_t count_;
  std::vector<std::uint32_t> indices_;
  std::vector<float> selected_;
  tutti::SelectScratch scratch_;
  std::vector<std::pair<float, std::uint32_t>> pairs_;
  std::vector<float> widened_;
  std::vector<std::uint16_t> halves_;
  std::vector<std::byte> blocks_;
  volatile std::uint32_t seen_ = 0;
};

void print(const std::vector<Contestant>& contestants) {
  const char* before = "{";
  for (const auto& contestant : contestants) {
    std::cout << before << '"' << contestant.name << "\": [";
    before = ",\n ";
    for (std::size_t i = 0; i < contestant.nanoseconds.size(); ++i) {
      std::cout << (i == 0 ? "" : ", ") << contestant.nanoseconds[i];
    }
    std::cout << ']';
  }
  std::cout << "}\n";
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) {
    std::cerr << "bench_selection ELEMENTS ROUNDS SLOW_ROUNDS\n";
    return 2;
  }
  torch::set_num_threads(1);
  torch::manual_seed(1);
  Selection selection(std::stoll(argv[1]));
  auto contestants = selection.contestants();
  const int slow_rounds = std::stoi(argv[3]);
  for (int round = 0; round < std::stoi(argv[2]); ++round) {
    for (auto& contestant : contestants) {
      if (contestant.slow && round >= slow_rounds) continue;
      if (!contestant.slow) contestant.work();
      contestant.nanoseconds.push_back(time_of(contestant.work));
    }
  }
  print(contestants);
}
