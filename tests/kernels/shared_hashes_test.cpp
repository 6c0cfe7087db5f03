// One table of hashes for all processors: what the kernels make of fixed input has the same bits on
// every architecture and with every instruction set. The input comes from integers and shifts of
// the exponent alone, thus is the same everywhere, whatever the C library.

#include <gmock/gmock.h>

#include <fmt/format.h>
#include <algorithm>
#include <map>

#include "every_target.h"
#include "kernels/average.h"
#include "kernels/fold_update.h"
#include "kernels/hash.h"
#include "kernels/int8_blocks.h"
#include "kernels/norm.h"
#include "kernels/select.h"
#include "update_model.h"

namespace tutti {
namespace {

using model::BFloat;
using model::Half;

using Hashes = std::map<std::string, std::uint64_t>;

constexpr std::size_t kCount = 4101;

template <class T>
T exact_value(std::mt19937_64& random) {
  const std::uint64_t bits = random();
  if constexpr (std::is_same_v<T, bool>) {
    return bits % 2 != 0;
  } else if constexpr (std::is_integral_v<T>) {
    return static_cast<T>(bits);
  } else {
    const auto fraction = static_cast<double>(static_cast<std::int64_t>(bits) >> 11);
    const double value = std::ldexp(fraction, static_cast<int>(bits % 12) - 56);
    return model::narrow<T>(static_cast<decltype(model::widen(T{}))>(value));
  }
}

template <class T>
std::vector<T> exact_values(std::uint64_t seed, std::size_t count = kCount) {
  std::mt19937_64 random(seed);
  std::vector<T> values(count);
  for (auto&& value : values) value = exact_value<T>(random);
  return values;
}

template <class T>
std::uint64_t hash_of(const std::vector<T>& values, std::uint64_t seed = 0) {
  return digest(values.data(), values.size() * sizeof(T), seed);
}

template <class T>
const std::string& type() {
  static const std::string name(name_of(model::DTypeOf<T>::value));
  return name;
}

template <class S, class R = S>
void add_fold(Hashes& hashes, Reduction reduction) {
  std::vector<std::vector<S>> sources;
  for (std::uint64_t k = 0; k < 7; ++k) sources.push_back(exact_values<S>(k));
  const double divisor = reduction == Reduction::mean ? 7 : 1;
  const auto bytes = folded<S, R>(sources, {.reduction = reduction, .divisor = divisor});
  auto name = "fold " + std::string(name_of(reduction)) + " " + type<S>();
  if (!std::is_same_v<S, R>) name += " to " + type<R>();
  hashes[name] = hash_of(bytes);
}

template <class T>
void add_folds(Hashes& hashes) {
  for (const auto reduction : {Reduction::sum, Reduction::mean, Reduction::max, Reduction::min,
                               Reduction::product, Reduction::logical_and, Reduction::logical_or}) {
    if (is_defined(reduction, model::DTypeOf<T>::value)) add_fold<T>(hashes, reduction);
  }
}

template <class T>
void add_elements(Hashes& hashes) {
  const auto dtype = model::DTypeOf<T>::value;
  const auto from = exact_values<T>(1);
  std::vector<T> scaled(kCount);
  auto added = exact_values<T>(2);
  double largest = 0;
  scale_into(scaled.data(), dtype, from.data(), dtype, kCount, 1.0 / 3, &largest);
  hashes["scale " + type<T>()] = hash_of(std::vector{largest}, hash_of(scaled));
  add_scaled(added.data(), dtype, from.data(), dtype, kCount, 1.0 / 3, &largest);
  hashes["add scaled " + type<T>()] = hash_of(std::vector{largest}, hash_of(added));
  // The sum of one block alone may hide the last bit of a square.
  const auto many = exact_values<T>(1, 40 * kNormBlock + 5);
  std::vector<double> blocks(41);
  squares_of_blocks(many.data(), dtype, std::ssize(many), blocks);
  blocks.push_back(tree_sum(blocks));
  hashes["norm " + type<T>()] = hash_of(blocks);
  if constexpr (sizeof(T) < 4) {
    const auto wide = exact_values<float>(3);
    round_into(scaled.data(), dtype, wide.data(), DType::float32, kCount);
    hashes["round to " + type<T>()] = hash_of(scaled);
    std::vector<float> back(kCount);
    scale_into(back.data(), DType::float32, from.data(), dtype, kCount, 1);
    hashes["widen " + type<T>()] = hash_of(back);
  }
}

void add_int8(Hashes& hashes) {
  auto values = exact_values<float>(4);
  std::vector<std::byte> blocks(int8_bytes(kCount));
  EXPECT_EQ(to_int8(blocks.data(), values.data(), kCount), -1);
  hashes["int8 blocks"] = hash_of(blocks);
  std::vector<float> read(kCount);
  from_int8(read.data(), blocks.data(), 0, kCount);
  hashes["int8 read"] = hash_of(read);
  auto rest = values;
  subtract_int8(rest.data(), blocks.data(), kCount);
  hashes["int8 rest"] = hash_of(rest);
  round_to_int8(values.data(), kCount);
  hashes["int8 rounded"] = hash_of(values);
}

void add_selections(Hashes& hashes) {
  const auto values = exact_values<float>(5, 40 * kCount);
  const auto count = static_cast<std::int64_t>(values.size());
  SelectScratch scratch;
  for (const std::int64_t k : {1L, 411L, 4101L, 100000L}) {
    std::vector<std::uint32_t> indices(static_cast<std::size_t>(k));
    std::vector<float> selected(indices.size());
    EXPECT_EQ(
        select_largest(values.data(), count, k, indices.data(), selected.data(), scratch).count, k);
    hashes["largest " + std::to_string(k)] = hash_of(selected, hash_of(indices));
  }
  std::vector<std::uint32_t> indices(values.size());
  std::vector<float> selected(values.size());
  const auto found =
      select_at_least(values.data(), count, 0.5F, indices.data(), selected.data(), count);
  indices.resize(static_cast<std::size_t>(found.count));
  selected.resize(indices.size());
  hashes["at least 0.5"] = hash_of(selected, hash_of(indices));
}

/// Gradient, parameter and states; what may be a mean of squares is at least 0.
template <class T>
StateValues<T> exact_state(std::uint64_t seed) {
  StateValues<T> values;
  for (std::size_t k = 0; k < values.size(); ++k) {
    values[k] = exact_values<T>(10 * seed + k);
    for (std::size_t i = 0; i < kCount && k >= 2; ++i) values[k][i] = std::abs(values[k][i]);
  }
  return values;
}

/// Each hash is of what all branches of one rule leave of parameter and states.
template <class T>
void add_rules(Hashes& hashes) {
  constexpr const char* kNames[] = {"Sgd", "Adam", "AdamW", "Adagrad", "RmsProp", "Lion"};
  for (const RuleCase& by : model::all_rules()) {
    const auto rule = std::visit(
        [&]<class Rule>(const Rule&) {
          constexpr bool kIs[] = {std::is_same_v<Rule, Sgd>,     std::is_same_v<Rule, Adam>,
                                  std::is_same_v<Rule, AdamW>,   std::is_same_v<Rule, Adagrad>,
                                  std::is_same_v<Rule, RmsProp>, std::is_same_v<Rule, Lion>};
          return kNames[std::find(std::begin(kIs), std::end(kIs), true) - std::begin(kIs)];
        },
        by.rule);
    auto& hash = hashes[std::string(rule) + " " + type<T>()];
    State<T> state(exact_state<T>(6), 0);
    UpdateTarget target = state.target();
    target.gradient_scale = 1.0 / 3;
    target.clip_value = 1.5;
    update(by.prepared(), target);
    hash = hash_of(state.parameter.bytes(), hash);
    for (const auto& one : state.states) hash = hash_of(one.bytes(), hash);
  }
}

template <class T>
void add_average(Hashes& hashes) {
  auto average = exact_values<T>(7);
  move_average(average.data(), exact_values<T>(8).data(), model::DTypeOf<T>::value, kCount, 0.999);
  hashes["average " + type<T>()] = hash_of(average);
}

void add_fold_update(Hashes& hashes) {
  std::vector<std::vector<float>> sources;
  std::vector<const void*> data;
  for (std::uint64_t k = 0; k < 7; ++k) sources.push_back(exact_values<float>(k));
  for (const auto& source : sources) data.push_back(source.data());
  const FoldProgram program = FoldProgram::canonical(7);
  State<float> state(exact_state<float>(9), 0);
  std::vector<BFloat> rounded(kCount);
  FoldUpdate work{.fold = {.program = &program, .divisor = 7, .sources = data, .count = kCount},
                  .target = state.target(),
                  .update = define(Adam{.lr = 0.01}).at({.step = 3}),
                  .rounded = rounded.data()};
  work.target.gradient = nullptr;
  fold_update(work);
  hashes["fold and Adam"] = hash_of(rounded, hash_of(state.parameter.bytes()));
}

Hashes computed() {
  Hashes hashes;
  add_folds<float>(hashes);
  add_folds<double>(hashes);
  add_folds<Half>(hashes);
  add_folds<BFloat>(hashes);
  add_folds<std::int32_t>(hashes);
  add_folds<std::int64_t>(hashes);
  add_folds<std::uint8_t>(hashes);
  add_folds<bool>(hashes);
  add_fold<float, BFloat>(hashes, Reduction::mean);
  add_fold<float, Half>(hashes, Reduction::mean);
  add_elements<float>(hashes);
  add_elements<double>(hashes);
  add_elements<Half>(hashes);
  add_elements<BFloat>(hashes);
  add_int8(hashes);
  add_selections(hashes);
  add_rules<float>(hashes);
  add_rules<double>(hashes);
  add_average<float>(hashes);
  add_average<double>(hashes);
  add_fold_update(hashes);
  return hashes;
}

/// XXH3 of the results.
const Hashes kShared = {
    {"Adagrad float32", 0xFB490432E269E754},
    {"Adagrad float64", 0x658892F9A76683DA},
    {"Adam float32", 0x2FA958B7292D51D1},
    {"Adam float64", 0xA4F3F492006F3E45},
    {"AdamW float32", 0x1BFABE8A4019837B},
    {"AdamW float64", 0xF9FFAC89628A9060},
    {"Lion float32", 0x2111A938EE2C6087},
    {"Lion float64", 0x283ED5E8DC3A7253},
    {"RmsProp float32", 0x82382C2024DFC549},
    {"RmsProp float64", 0xAE2D7D2283FB1DDF},
    {"Sgd float32", 0xAA8382130DB300F3},
    {"Sgd float64", 0xB143BEAF17DEF0BB},
    {"add scaled bfloat16", 0x3F38EB06C9CFFFDD},
    {"add scaled float16", 0xCBBA8E412E977EB0},
    {"add scaled float32", 0x527D5424AF696F0D},
    {"add scaled float64", 0x40B30BF3BBB984E0},
    {"at least 0.5", 0x3A9F30C3CE962424},
    {"average float32", 0x08E7EAB371368037},
    {"average float64", 0x60371BDF925A2A11},
    {"fold and Adam", 0x141372CB09C2F300},
    {"fold logical_and boolean", 0x6EDE1770C416C3B9},
    {"fold logical_or boolean", 0x3C912A9E7B669828},
    {"fold max bfloat16", 0xB6878D091E761D75},
    {"fold max float16", 0x1C9D9F1806C97897},
    {"fold max float32", 0x19CCC4D9E0296F6F},
    {"fold max float64", 0x6B9A7D673B6655D4},
    {"fold max int32", 0x0FD74EAB994C1F36},
    {"fold max int64", 0xDB68F2C577CEADAF},
    {"fold max uint8", 0xF528D81BDDCA4C2D},
    {"fold mean bfloat16", 0xB7E00026D017037E},
    {"fold mean float16", 0x40F6E6175933B286},
    {"fold mean float32 to bfloat16", 0x4E70CD8A5D83BDDB},
    {"fold mean float32 to float16", 0x8771153DFF0AFD25},
    {"fold mean float32", 0x59F26BB1C11B8275},
    {"fold mean float64", 0x3E9302A17E22F9A9},
    {"fold min bfloat16", 0x71F34D74444E396A},
    {"fold min float16", 0x03A26AD76BDA7F24},
    {"fold min float32", 0x2A923063176AD1D1},
    {"fold min float64", 0x21298988BC90D701},
    {"fold min int32", 0xB35E2B3599C3E0BD},
    {"fold min int64", 0x7D67258E9D4BD6D6},
    {"fold min uint8", 0x0ADA70F2EAF3B3FC},
    {"fold product bfloat16", 0x786248DE65EA1904},
    {"fold product float16", 0xB1D85EF2F6DB80A7},
    {"fold product float32", 0xB5C60E0B87F62753},
    {"fold product float64", 0xB26CD0B6E90D7138},
    {"fold product int32", 0x4819A0ECC51AC2BF},
    {"fold product int64", 0xD3E73EF12E7B85A4},
    {"fold product uint8", 0x51FE8556B4A8F0FB},
    {"fold sum bfloat16", 0xE6A126301078A599},
    {"fold sum float16", 0xB50BC7C45609946A},
    {"fold sum float32", 0xF0225D3B4B7618DC},
    {"fold sum float64", 0xC9FAD029E446E2E6},
    {"fold sum int32", 0x04071F87A201C024},
    {"fold sum int64", 0xF601ED3CD3DA12C3},
    {"fold sum uint8", 0xD9C57F09F7FD26B0},
    {"int8 blocks", 0x768ECFD86033B39D},
    {"int8 read", 0xCFD69F004C41A55D},
    {"int8 rest", 0x058F79EB998FD128},
    {"int8 rounded", 0xCFD69F004C41A55D},
    {"largest 1", 0x2BDF3653CC894BF7},
    {"largest 100000", 0xCA9CB8046F67FFCD},
    {"largest 4101", 0xCC42218C58A253D3},
    {"largest 411", 0x0042CB1E85458DF1},
    {"norm bfloat16", 0xF13BECFC0FE9FB02},
    {"norm float16", 0x57BB513EBF63672F},
    {"norm float32", 0x743302B643DC1E30},
    {"norm float64", 0xC0A782A1A087D240},
    {"round to bfloat16", 0xFF507BBFCD9C9E40},
    {"round to float16", 0x32FE0CDF9AEE29A7},
    {"scale bfloat16", 0x7BB5AB2E3826C6BD},
    {"scale float16", 0xF8EB7AD3B2743DAE},
    {"scale float32", 0x3BE51CA6349E7B7C},
    {"scale float64", 0x70DEBF3CF5ACE11A},
    {"widen bfloat16", 0x8FCDEFC952FF697E},
    {"widen float16", 0x0A154D8CB7CB15EF},
};

class SharedHashes : public EveryTarget {};
TUTTI_ON_EVERY_TARGET(SharedHashes);

// findings-3: A5
TEST_P(SharedHashes, AreThoseOfTheTable) {
  const Hashes here = computed();
  EXPECT_EQ(here.size(), kShared.size());
  for (const auto& [name, hash] : here) {
    const auto expected = kShared.find(name);
    EXPECT_TRUE(expected != kShared.end() && expected->second == hash)
        << fmt::format("{{\"{}\", 0x{:016X}}},", name, hash);
  }
}

}  // namespace
}  // namespace tutti
