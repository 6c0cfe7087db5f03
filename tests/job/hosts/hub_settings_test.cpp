#include "job/hosts/hub_settings.h"

#include <gmock/gmock.h>

#include "support/text_of.h"

namespace tutti::test {
namespace {

using ::testing::StartsWith;

Environment environment(const std::string& address) {
  Environment environment;
  environment.hub = Environment::Hub{address, 29600};
  environment.token = "secret";
  return environment;
}

TEST(HubSettings, AreThoseOfTheVariables) {
  auto set = environment("10.0.0.1");
  auto settings = hub_of(set);
  EXPECT_EQ(settings.hub.address, "10.0.0.1");
  EXPECT_EQ(settings.hub.port, 29600);
  EXPECT_EQ(settings.hub.from, "");
  EXPECT_EQ(settings.token, "secret");
  set.interface = "lo";
  EXPECT_EQ(hub_of(set).hub.from, "127.0.0.1");
}

TEST(HubSettings, HaveTheLaunchersAddressWhereAPortAloneIsGiven) {
  auto set = environment("");
  set.launcher = Environment::Launcher{.name = "torchrun", .rank_variable = "RANK"};
  EXPECT_EQ(text_of([&] { hub_of(set); }),
            "TUTTI_HUB is \":29600\", without an address, and torchrun does not tell that of the "
            "host of rank 0");
  set.launcher->address = "10.0.0.7";
  EXPECT_EQ(hub_of(set).hub.address, "10.0.0.7");
  set.hub->address = "10.0.0.8";
  EXPECT_EQ(hub_of(set).hub.address, "10.0.0.8");
}

TEST(HubSettings, WhatIsMissingIsNamed) {
  auto set = environment("10.0.0.1");
  set.token.clear();
  EXPECT_EQ(text_of([&] { hub_of(set); }),
            "to find one another the hosts of a job need what is not set: TUTTI_TOKEN (a secret of "
            "this job); the same on all of them");
  set.hub.reset();
  EXPECT_THAT(text_of([&] { hub_of(set); }),
              StartsWith("to find one another the hosts of a job need what is not set: TUTTI_HUB "
                         "(address:port at the host of rank 0) and TUTTI_TOKEN"));
  set = environment("10.0.0.1");
  set.interface = "eth77";
  EXPECT_THAT(text_of([&] { hub_of(set); }),
              StartsWith("TUTTI_INTERFACE: there is no interface \"eth77\""));
}

}  // namespace
}  // namespace tutti::test
