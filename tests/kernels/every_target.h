#pragma once

// Runs a test once for every instruction set that this machine has and the library was built for.

#include <gtest/gtest.h>
#include <hwy/highway.h>
#include <hwy/targets.h>

namespace tutti {

class EveryTarget : public testing::TestWithParam<std::int64_t> {
 protected:
  void SetUp() override { hwy::SetSupportedTargetsForTest(GetParam()); }
  void TearDown() override { hwy::SetSupportedTargetsForTest(0); }
};

inline std::string target_name(const testing::TestParamInfo<std::int64_t>& info) {
  return hwy::TargetName(info.param);
}

}  // namespace tutti

#define TUTTI_ON_EVERY_TARGET(suite)                                                          \
  INSTANTIATE_TEST_SUITE_P(On, suite, testing::ValuesIn(hwy::SupportedAndGeneratedTargets()), \
                           tutti::target_name)
