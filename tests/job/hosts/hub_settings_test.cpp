#include "job/hosts/hub_settings.h"

#include <gmock/gmock.h>

#include "support/text_of.h"

namespace tutti::test {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

Environment environment(const std::string& address) {
  Environment environment;
  environment.hub = Environment::Hub{address, 29600};
  environment.token = "secret";
  return environment;
}

// promise: environment.h#Hub, clusters#between-hosts
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

// promise: clusters#several-hosts
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

// promise: clusters#several-hosts
TEST(HubSettings, AreBesideTorchrunsOwnPortWhereNoneAreGiven) {
  Environment set;
  set.launcher = Environment::Launcher{
      .name = "torchrun", .rank_variable = "RANK", .job = "blue", .address = "10.0.0.7"};
  EXPECT_THAT(text_of([&] { hub_of(set); }), HasSubstr("TUTTI_HUB"));
  set.launcher->port = 29500;
  const auto settings = hub_of(set);
  EXPECT_EQ(settings.hub.address, "10.0.0.7");
  EXPECT_EQ(settings.hub.port, 29501);
  EXPECT_EQ(settings.choice,
            "the port after MASTER_PORT, without a secret, as TUTTI_TOKEN is not set");
  EXPECT_THAT(settings.advice, HasSubstr("MASTER_PORT, 29500; give another --master-port, or "
                                         "TUTTI_HUB=:port"));
  // What is given counts.
  set.token = "secret";
  EXPECT_EQ(hub_of(set).token, "secret");
  EXPECT_EQ(hub_of(set).choice, "the port after MASTER_PORT, with TUTTI_TOKEN");
  set.hub = Environment::Hub{"", 29600};
  EXPECT_EQ(hub_of(set).hub.address, "10.0.0.7");
  EXPECT_EQ(hub_of(set).hub.port, 29600);
  EXPECT_EQ(hub_of(set).choice, "TUTTI_HUB, with TUTTI_TOKEN");
  EXPECT_EQ(hub_of(set).advice, "");
  set.hub.reset();
  set.launcher->port = 65535;
  EXPECT_THAT(text_of([&] { hub_of(set); }), StartsWith("MASTER_PORT is 65535"));
}

// promise: clusters#between-hosts
TEST(HubSettings, JobsOfOtherNamesOrPortsHaveOtherTokens) {
  Environment set;
  set.launcher = Environment::Launcher{
      .name = "torchrun", .rank_variable = "RANK", .job = "blue", .address = "a", .port = 29500};
  const auto token = hub_of(set).token;
  set.launcher->address = "a.of.the.same";
  EXPECT_EQ(hub_of(set).token, token) << "each host may call the first by another name";
  set.launcher->job = "green";
  EXPECT_NE(hub_of(set).token, token);
  set.launcher->job = "blue";
  set.launcher->port = 29501;
  EXPECT_NE(hub_of(set).token, token);
}

// promise: clusters#several-hosts
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
