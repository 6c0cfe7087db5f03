#include "codec/sparse_message.h"

#include <bit>
#include <vector>

#include <gtest/gtest.h>

namespace tutti {
namespace {

/// Of five values three are sent, one of them −0.0: once as a list and once as an array.
// promise: codec.h#MessageFormat
TEST(SparseMessage, TheTransportDoesNotDecideTheSignOfAZeroThatIsLeft) {
  const std::vector<float> values = {1.5F, -0.0F, 2.0F, -0.0F, 0.0F};
  const std::vector<std::uint32_t> sent = {0, 1, 4};
  std::vector<std::byte> as_list(kSparseHeader + sent.size() * kSparseEntry);
  const auto list = begin_list(as_list.data(), static_cast<std::int64_t>(sent.size()));
  std::vector<std::byte> as_array(kSparseHeader + values.size() * sizeof(float));
  float* const array = begin_array(as_array.data(), static_cast<std::int64_t>(values.size()));
  for (std::size_t k = 0; k < sent.size(); ++k) {
    list.indices[k] = sent[k];
    list.values[k] = array[sent[k]] = values[sent[k]];
  }
  // What is left of the values themselves, and of something else that is masked like them.
  for (const auto& before : {values, std::vector<float>{3, 4, 5, 6, 7}}) {
    auto one = before;
    auto other = before;
    clear_sent(as_list, one);
    clear_sent(as_array, other);
    for (std::size_t i = 0; i < before.size(); ++i) {
      EXPECT_EQ(std::bit_cast<std::uint32_t>(one[i]), std::bit_cast<std::uint32_t>(other[i])) << i;
    }
    EXPECT_EQ(one[0], 0);
    EXPECT_EQ(one[4], 0);
    EXPECT_EQ(one[2], before[2]);
  }
}

}  // namespace
}  // namespace tutti
