#include "tutti/dtype.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

namespace tutti {
namespace {

constexpr DType kTypes[] = {DType::float32, DType::float64, DType::float16, DType::bfloat16,
                            DType::int32,   DType::int64,   DType::uint8,   DType::boolean};
constexpr Reduction kReductions[] = {
    Reduction::sum,     Reduction::mean,        Reduction::max,       Reduction::min,
    Reduction::product, Reduction::logical_and, Reduction::logical_or};

// promise: dtype.h#DType, dtype.h#name_of, dtype.h#size_of
TEST(DType, has_a_size_and_a_name_of_its_own) {
  const std::size_t sizes[] = {4, 8, 2, 2, 4, 8, 1, 1};
  const char* names[] = {"float32", "float64", "float16", "bfloat16",
                         "int32",   "int64",   "uint8",   "boolean"};
  for (std::size_t i = 0; i < std::size(kTypes); ++i) {
    EXPECT_EQ(size_of(kTypes[i]), sizes[i]);
    EXPECT_EQ(name_of(kTypes[i]), names[i]);
    EXPECT_EQ(is_floating(kTypes[i]), std::string(names[i]).find("float") != std::string::npos);
  }
  EXPECT_EQ((View{nullptr, 3, DType::float64}.bytes()), 24U);
  EXPECT_EQ(ConstView(View{nullptr, 5, DType::bfloat16}).bytes(), 10U);
}

// promise: dtype.h#DType
TEST(Reduction, has_a_name_of_its_own) {
  std::set<std::string_view> names;
  for (const Reduction reduction : kReductions) names.insert(name_of(reduction));
  EXPECT_EQ(names.size(), std::size(kReductions));
  EXPECT_EQ(name_of(Reduction::logical_and), "logical_and");
}

// promise: dtype.h#Reduction, dtype.h#is_defined, numerics#other-types-and-values
TEST(Reduction, is_defined_where_it_means_something) {
  for (const DType type : kTypes) {
    const bool boolean = type == DType::boolean;
    for (const Reduction r : {Reduction::sum, Reduction::max, Reduction::min, Reduction::product})
      EXPECT_EQ(is_defined(r, type), !boolean) << name_of(type);
    for (const Reduction r : {Reduction::logical_and, Reduction::logical_or})
      EXPECT_EQ(is_defined(r, type), boolean) << name_of(type);
    EXPECT_EQ(is_defined(Reduction::mean, type), is_floating(type)) << name_of(type);
  }
}

}  // namespace
}  // namespace tutti
