// Adding up the lists that logical workers send: each worker a range of the elements of all lists
// (region split, what Tutti does), or every worker all of them (after an all-gather). One thread.
//
//   bench_merge ELEMENTS ENTRIES LISTS ROUNDS
//
// Prints, as JSON, nanoseconds of each round by contestant, and how many entries the sum has.

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <random>
#include <string>
#include <vector>

#include "codec/sparse_message.h"
#include "sync/coded/message_sum.h"
#include "sync/plan/tile_share.h"

namespace {

using tutti::kTile;

/// So many of the elements, drawn by chance, ascending.
std::vector<std::uint32_t> draw(std::int64_t elements, std::int64_t entries,
                                std::mt19937_64& random) {
  std::vector<std::uint32_t> indices;
  std::int64_t left = entries;
  for (std::int64_t i = 0; i < elements && left > 0; ++i) {
    std::uniform_int_distribution<std::int64_t> place(0, elements - i - 1);
    if (place(random) >= left) continue;
    indices.push_back(static_cast<std::uint32_t>(i));
    --left;
  }
  return indices;
}

std::vector<std::byte> message_of(const std::vector<std::uint32_t>& indices) {
  const auto entries = static_cast<std::int64_t>(indices.size());
  std::vector<std::byte> message(tutti::kSparseHeader + indices.size() * tutti::kSparseEntry);
  const auto list = tutti::begin_list(message.data(), entries);
  std::copy(indices.begin(), indices.end(), list.indices);
  std::fill_n(list.values, entries, 1.0f);
  return message;
}

class Merge {
 public:
  Merge(std::int64_t elements, std::int64_t entries, std::int64_t lists)
      : elements_(elements),
        codec_(tutti::top_k_codec()),
        sum_(*codec_, lists),
        to_(static_cast<std::size_t>(elements)) {
    std::mt19937_64 random(1);
    for (std::int64_t l = 0; l < lists; ++l) {
      messages_.push_back(message_of(draw(elements, entries, random)));
    }
    for (std::int64_t l = 0; l < lists; ++l) {
      terms_.push_back({.message = messages_[static_cast<std::size_t>(l)],
                        .context = {.logical_workers = lists, .count = elements},
                        .first = 0,
                        .share = 1.0 / static_cast<double>(lists),
                        .place = {l, 1}});
    }
  }

  /// Of the elements up to `end`; returns nanoseconds.
  double time(std::int64_t end) {
    const auto begin = std::chrono::steady_clock::now();
    for (std::int64_t at = 0; at < end; at += kTile) {
      sum_.take(terms_, at, {to_.data() + at, static_cast<std::size_t>(std::min(kTile, end - at))});
    }
    return std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - begin)
        .count();
  }

  std::int64_t entries() const {
    return std::count_if(to_.begin(), to_.end(), [](float x) { return !tutti::is_absent(x); });
  }

 private:
  std::int64_t elements_;
  tutti::CodecPointer codec_;
  tutti::MessageSum sum_;
  std::vector<float> to_;
  std::vector<std::vector<std::byte>> messages_;
  std::vector<tutti::SumTerm> terms_;
};

void print(const std::vector<double>& values) {
  for (std::size_t i = 0; i < values.size(); ++i) std::cout << (i == 0 ? "" : ", ") << values[i];
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) {
    std::cerr << "bench_merge ELEMENTS ENTRIES LISTS ROUNDS\n";
    return 2;
  }
  const auto elements = std::stoll(argv[1]);
  const auto lists = std::stoll(argv[3]);
  Merge merge(elements, std::stoll(argv[2]), lists);
  merge.time(elements);
  const auto entries = merge.entries();
  if (entries < std::stoll(argv[2]) || entries > lists * std::stoll(argv[2])) {
    std::cerr << "the sum has " << entries << " entries\n";
    return 1;
  }
  std::vector<double> split;
  std::vector<double> all;
  for (int round = 0; round < std::stoi(argv[4]); ++round) {
    split.push_back(merge.time(elements / lists));
    all.push_back(merge.time(elements));
  }
  std::cout << "{\"entries\": " << entries << ", \"region split\": [";
  print(split);
  std::cout << "], \"all-gather\": [";
  print(all);
  std::cout << "]}\n";
}
