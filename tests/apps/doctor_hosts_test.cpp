// `tutti doctor --hosts`, where the remote shell is a script that stays on this machine.

#include "apps/tutti/doctor/doctor_hosts.h"

#include <gmock/gmock.h>
#include <sys/stat.h>
#include <fstream>
#include <nlohmann/json.hpp>

#include "support/running_command.h"

namespace tutti {
namespace {

using command::compare_hosts;
using command::HostAnswer;
using command::HostCheck;
using nlohmann::json;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ContainsRegex;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

json facts() {
  return {{"version", "0.1.0"},
          {"libtorch", "2.13.0"},
          {"library_settings", json::object()},
          {"processor",
           {{"architecture", "x86_64"},
            {"vendor", "GenuineIntel"},
            {"family", 6},
            {"model", 143},
            {"extensions", "avx2"}}},
          {"cpu_levels", {"default", "avx2"}},
          {"simd", "AVX2"},
          {"processors", {{"usable", 16}}},
          {"problems", json::array()}};
}

/// "ERROR libtorch a: 2.13.0; b: …" of whatever is not ok.
std::vector<std::string> findings(const json& b) {
  std::vector<std::string> texts;
  for (const auto& check : compare_hosts({{"a", facts()}, {"b", b}})) {
    if (check.grade == HostCheck::Grade::ok) continue;
    const bool is_error = check.grade == HostCheck::Grade::error;
    texts.push_back((is_error ? "ERROR " : "warning ") + check.what + " " + check.text);
  }
  return texts;
}

// promise: launcher#tutti-doctor
TEST(DoctorHosts, WhatDiffersIsToldWithBothHosts) {
  EXPECT_THAT(findings(facts()), ElementsAre());
  auto b = facts();
  b["version"] = "0.2.0";
  b["libtorch"] = nullptr;
  EXPECT_THAT(findings(b),
              ElementsAre("ERROR tutti a: 0.1.0; b: 0.2.0: their workers refuse one another",
                          "ERROR libtorch a: 2.13.0; b: none: their workers refuse one another"));
  b = facts();
  b["library_settings"] = {{"MKL_CBWR", "AVX2"}};
  EXPECT_THAT(findings(b), ElementsAre("ERROR torch, MKL, oneDNN a: no variable; b: MKL_CBWR=AVX2: "
                                       "their workers refuse one another"));
  b = facts();
  b["processor"]["model"] = 85;
  b["cpu_levels"] = {"default", "avx2", "avx512"};
  b["simd"] = "AVX3";
  b["processors"]["usable"] = 8;
  EXPECT_THAT(findings(b),
              ElementsAre("warning processor a: GenuineIntel family 6 model 143, avx2; b: "
                          "GenuineIntel family 6 model 85, avx2: their workers refuse one another "
                          "without --cpu; both have default, avx2",
                          "warning processors a: 16; b: 8: with as many workers each, the others "
                          "wait for those of the smaller host"));
}

// findings-3: A5
TEST(DoctorHosts, NoLevelIsOfferedWhereNoneLevels) {
  auto arm = facts();
  arm["processor"]["architecture"] = "aarch64";
  const std::string refused = "their workers refuse one another, with every --cpu";
  arm["processor"]["extensions"] = "asimd";
  EXPECT_THAT(findings(arm), ElementsAre(HasSubstr(refused))) << "beside x86-64";
  auto other = arm;
  other["processor"]["model"] = "0xd40";
  const auto checks = compare_hosts({{"a", arm}, {"b", other}});
  EXPECT_THAT(checks, Contains(testing::Field(&HostCheck::text, HasSubstr(refused))));
}

// promise: launcher#tutti-doctor
TEST(DoctorHosts, AHostWithAProblemOrAnotherFormIsNamed) {
  auto b = facts();
  b["problems"] = {"no memory"};
  EXPECT_THAT(findings(b), ElementsAre("ERROR host b: no memory"));
  b.erase("problems");
  EXPECT_THAT(findings(b), ElementsAre("ERROR tutti a and b: their versions differ, their facts "
                                       "cannot be compared"));
}

// promise: launcher#tutti-doctor
TEST(DoctorHosts, ALineTellsWhatAConnectionIsWorth) {
  const auto ask = [](const std::string& hosts) {
    return run_command({"doctor", "--hosts", hosts, "--ssh", "sh -c 'sh -c \"$2\"' sh"});
  };
  const auto good = ask("localhost,127.0.0.1");
  // Both are this machine: no round trip takes a second, and more than a megabyte moves in one.
  EXPECT_THAT(good.out,
              ContainsRegex("ok +connection +127.0.0.1 to localhost: round trip 0\\.[0-9]+ ms, "
                            "[0-9]+ MB/s there, [0-9]+ MB/s back\n"))
      << good.err;
  EXPECT_THAT(good.out, Not(HasSubstr(" 0 MB/s")));
  EXPECT_THAT(good.out, Not(HasSubstr("round trip 0.000 ms")));
  EXPECT_EQ(good.status, 0);
  const auto bad = ask("192.0.2.1,127.0.0.1");  // an address that no host has
  EXPECT_EQ(bad.status, 1);
  EXPECT_THAT(bad.out, HasSubstr("ERROR    connection          127.0.0.1 to 192.0.2.1: 192.0.2.1 "
                                 "cannot listen at that name\n"));
}

// promise: launcher#tutti-doctor
TEST(DoctorHosts, EachHostIsAskedByTheRemoteShell) {
  const TemporaryFolder folder;
  const auto shell = folder.file("ssh");
  std::ofstream(shell) << "#!/bin/sh\n"
                          "case $1 in nowhere) echo cannot connect >&2; exit 255;; esac\n"
                          "[ $1 != other ] || export MKL_CBWR=AVX2\n"
                          "cd / && exec sh -c \"$2\"\n";
  ::chmod(shell.c_str(), 0755);
  const auto ask = [&](const std::string& hosts) {
    return run_command({"doctor", "--hosts", hosts, "--ssh", shell});
  };
  const auto good = ask("localhost,127.0.0.1:2,[::1]");
  EXPECT_EQ(good.status, 0) << good.out << good.err;
  EXPECT_THAT(lines_of(good.out),
              AllOf(Contains("ok       host                127.0.0.1: can train"),
                    Contains(HasSubstr("ok       tutti               localhost and ::1: ")),
                    Contains("These hosts can train together.")));
  const auto bad = ask("localhost,nowhere,other");
  EXPECT_EQ(bad.status, 1);
  EXPECT_THAT(lines_of(bad.out),
              AllOf(Contains("ERROR    host                nowhere: `tutti doctor` gives no answer "
                             "there: exit status 255"),
                    Contains("ERROR    torch, MKL, oneDNN  localhost: no variable; other: "
                             "MKL_CBWR=AVX2: their workers refuse one another"),
                    Contains("These hosts cannot train together as they are."),
                    Not(Contains(HasSubstr("can train together.")))));
  EXPECT_THAT(bad.err, HasSubstr("cannot connect"));
  EXPECT_EQ(ask("-x").status, 2);
}

}  // namespace
}  // namespace tutti
