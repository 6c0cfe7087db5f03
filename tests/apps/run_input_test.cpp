// What `tutti run` is given, what workers get of it, and what is refused.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <sys/stat.h>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "apps/tutti/run/processor_set.h"
#include "base/system.h"
#include "support/running_command.h"

namespace tutti {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::UnorderedElementsAre;

struct Bad {
  std::vector<std::string> arguments;
  int status;
  std::string text;
};

// promise: launcher#when-a-worker-fails
TEST(RunInput, BadInputIsOneErrorBeforeAnythingStarts) {
  const std::vector<Bad> all = {
      {{"run", "-n", "0", "echo"}, 2, "-n 0: the number of workers must be 1 to 64"},
      {{"run", "-n", "-3", "echo"}, 2, "-n -3: the number of workers must be 1 to 64"},
      {{"run", "-n", "65", "echo"}, 2, "-n 65: the number of workers must be 1 to 64"},
      {{"run", "-n", "two", "echo"}, 2, "-n two: the number of workers must be 1 to 64"},
      {{"run", "-n", "2.5", "echo"}, 2, "2.5"},
      {{"run", "-n", "99999999999999", "echo"}, 2, "99999999999999"},
      {{"run", "-n", "", "echo"}, 2, "-n \"\": must be a number"},
      {{"run", "-n", "2", "--threads", "", "echo"}, 2, "--threads \"\": must be a number"},
      {{"run", "-n", "2", "--deadline=", "echo"}, 2, "--deadline"},
      {{"run", "-n", "2", "--deadline", "", "echo"}, 2, "--deadline \"\": must be a number"},
      {{"run", "-n", "2", "--restarts", "", "echo"}, 2, "--restarts \"\": must be a number"},
      {{"run", "-n", "2", "--restarts", "-1", "echo"}, 2, "--restarts -1: must be 0 or more"},
      {{"run", "-n", "2", "--restarts", "often", "echo"}, 2, "--restarts = often"},
      {{"run", "-n", "2", "--restarts", "1.5", "echo"}, 2, "--restarts = 1.5"},
      {{"run", "-n", "2", "--restarts", "99999999999", "echo"}, 2, "--restarts = 99999999999"},
      {{"run", "echo"}, 2, "-n"},
      {{"run", "-n", "2"}, 2, "no program given"},
      {{"run", "-n", "2", "--"}, 2, "no program given"},
      {{"run", "-n", "2", ""}, 2, "no program given"},
      {{"run", "-n", "2", "--deadline", "0", "echo"}, 2, "--deadline 0: must be a positive number"},
      {{"run", "-n", "2", "--deadline", "-1", "echo"},
       2,
       "--deadline -1: must be a positive number"},
      {{"run", "-n", "2", "--deadline", "nan", "echo"}, 2, "--deadline"},
      {{"run", "-n", "2", "--threads", "0", "echo"}, 2, "--threads 0: must be 1 to"},
      {{"run", "-n", "2", "--bind", "socket", "echo"}, 2, "--bind socket: must be core or none"},
      {{"run", "-n", "2", "--cpu", "sse9", "echo"},
       2,
       "--cpu sse9: must be default, avx2, avx512 or native"},
      {{"run", "-n", "2", "--cpu", "", "echo"}, 2, "--cpu \"\": must be default, avx2"},
      {{"run", "-n", "2", "--thread", "3", "echo"},
       2,
       "there is no option \"--thread\": did you mean \"--threads\"?"},
      {{"run", "--np", "2", "echo"},
       2,
       "there is no option \"--np\": the number of workers is given by -n"},
      {{"run", "--np=2", "echo"},
       2,
       "there is no option \"--np\": the number of workers is given by -n"},
      {{"run", "-np", "2", "echo"},
       2,
       "there is no option \"-np\": the number of workers is given by -n"},
      {{"run", "-x", "echo"}, 2, "there is no option \"-x\"\n"},
      {{"run", "-n", "64", "--threads", "4000", "--bind", "core", "echo"},
       2,
       "--bind core: 64 workers of 4000 threads need 256000 processors"},
      {{"run", "-n", "2", "--profile", "/no/such/p.json", "echo"},
       2,
       "there is no folder /no/such"},
      {{"run", "-n", "2", "no-such-program-here"},
       127,
       "cannot run \"no-such-program-here\": no such program in PATH"},
      {{"run", "-n", "2", "./no/such"}, 127, "cannot run \"./no/such\": No such file or directory"},
      {{"run", "-n", "2", "/etc/passwd"},
       126,
       "cannot run \"/etc/passwd\": it is not an executable"},
      {{"run", "-n", "2", "/tmp"}, 126, "cannot run \"/tmp\": it is a folder"},
      {{}, 2, "subcommand"},
      {{"rum"}, 2, "there is no command \"rum\": did you mean \"run\"?"},
      {{"train"}, 2, "there is no command \"train\"\n"},
      {{"-n", "2", "./train"},
       2,
       "\"-n\" is an option of tutti run: did you mean \"tutti run -n 2 ./train\"?"},
      {{"-n", "2", "run", "./train"},
       2,
       "\"-n\" is an option of tutti run: did you mean \"tutti run -n 2 ./train\"?"},
      {{"run", "--survivor", "-n", "2", "echo"},
       2,
       "there is no option \"--survivor\": did you mean \"--survivors\"?"},
      {{"run", "--nproc", "2", "echo"}, 2, "\"--nproc\": the number of workers is given by -n"},
      {{"run", "--nproc_per_node=2", "echo"},
       2,
       "\"--nproc_per_node\": the number of workers is given by -n"},
      {{"run", "--frobnicate", "-n", "2", "echo"}, 2, "there is no option \"--frobnicate\"\n"},
      {{"run", "echo", "-n", "2"},
       2,
       "neither -n nor --hosts is given: what stands behind \"echo\" is for the program; options "
       "of "
       "tutti run stand before it"},
      {{"doctor", "--jsno"}, 2, "--jsno"},
  };
  for (const Bad& bad : all) {
    const auto run = run_command(bad.arguments);
    EXPECT_EQ(run.status, bad.status) << bad.text;
    EXPECT_THAT(run.err, HasSubstr(bad.text));
    EXPECT_THAT(run.err, Not(HasSubstr("hint:"))) << bad.text;
    EXPECT_EQ(run.out, "") << bad.text;
    EXPECT_EQ(run.err.find("--help") != std::string::npos, bad.status == 2) << bad.text;
  }
}

TEST(RunInput, AFileThatTheSystemCannotExecuteIsOneError) {
  const TemporaryFolder folder;
  const std::string program = folder.file("garbage");
  std::ofstream(program) << "neither script nor binary";
  chmod(program.c_str(), 0755);
  const auto run =
      run_command({"run", "-n", "3", program},
                  {.environment = {"OMP_NUM_THREADS", "MKL_NUM_THREADS", "TUTTI_THREADS"}});
  EXPECT_EQ(run.status, 126);
  EXPECT_THAT(run.err, HasSubstr("garbage\": Exec format error"));
  EXPECT_EQ(lines_of(run.err).size(), run.err.find("hint:") == std::string::npos ? 1U : 2U);
}

// promise: launcher#tutti-run-starting-workers
TEST(RunInput, EverythingFromTheProgramOnIsTheProgramsOwn) {
  const std::vector<std::string> program = {"/bin/sh", "-c", "echo \"$@\"", "sh", "--threads", "9",
                                            "-n",      "5",  "--help",      "--", "run"};
  for (const bool with_mark : {false, true}) {
    std::vector<std::string> arguments = {"run", "--threads=1", "-n1"};
    if (with_mark) arguments.push_back("--");
    arguments.insert(arguments.end(), program.begin(), program.end());
    EXPECT_EQ(run_command(arguments).out, "[0] --threads 9 -n 5 --help -- run\n");
  }
}

TEST(RunInput, ProgramsAreFoundAlongPath) {
  EXPECT_EQ(run_command({"run", "-n", "1", "echo", "found"}).out, "[0] found\n");
}

// promise: launcher#what-a-worker-gets
TEST(RunInput, WorkersReadNothing) {
  const auto run =
      run_script({"-n", "2"}, "if read line; then echo got $line; else echo nothing; fi",
                 {.environment = {}, .input = "meant for nobody\n"});
  EXPECT_THAT(lines_of(run.out), UnorderedElementsAre("[0] nothing", "[1] nothing"));
}

// promise: job.h#threads, launcher#what-a-worker-gets
TEST(RunInput, ThreadsAreOneUnlessGiven) {
  const std::string show = "echo $TUTTI_THREADS $OMP_NUM_THREADS $MKL_NUM_THREADS";
  const CommandSetup other{
      .environment = {"OMP_NUM_THREADS=7", "MKL_NUM_THREADS=8", "TUTTI_THREADS=9"}};
  EXPECT_EQ(run_script({"-n", "1"}, show, other).out, "[0] 1 1 1\n");
  EXPECT_EQ(run_script({"-n", "1", "--threads", "3"}, show, other).out, "[0] 3 3 3\n");
}

// promise: launcher#what-a-worker-gets
TEST(RunInput, HintsTalkAboutProcessorsThatAreIdleOrShared) {
  const int processors = host_system()->processors();
  const auto hints = [](const std::string& text) {
    return text.find("hint:") != std::string::npos;
  };
  const auto crowded = run_script({"-n", "2", "--threads", std::to_string(processors)}, "true");
  EXPECT_THAT(crowded.err, HasSubstr("hint: 2 workers with"));
  EXPECT_THAT(crowded.err, HasSubstr("they wait for each other"));
  EXPECT_FALSE(hints(run_script({"-n", "1", "--threads", std::to_string(processors)}, "true").err));
  if (processors > 1) {
    const auto idle = run_script({"-n", "1"}, "true");
    EXPECT_THAT(idle.err, HasSubstr("hint: 1 worker with 1 thread each use 1 of"));
    EXPECT_THAT(idle.err, HasSubstr("--threads " + std::to_string(processors) + " would use all"));
    EXPECT_THAT(idle.err, HasSubstr("results depend on --threads"));
  }
}

// findings-3: D3
TEST(RunInput, AnOptionBehindTheProgramIsHintedAtWhereItMayBeMeantForTheCommand) {
  const auto hint = HasSubstr("hint: --threads stands behind \"echo\", so the program gets it");
  EXPECT_THAT(run_command({"run", "-n", "1", "echo", "--threads", "2"}).err, hint);
  EXPECT_THAT(run_command({"run", "-n", "1", "echo", "--threads=2"}).err, hint);
  EXPECT_THAT(run_command({"run", "-n", "1", "--", "echo", "--threads", "2"}).err, Not(hint));
  EXPECT_THAT(run_command({"run", "-n", "1", "--threads", "1", "echo", "--threads", "2"}).err,
              Not(hint));
  EXPECT_THAT(run_command({"run", "-n", "1", "echo", "--threadsafe", "-n", "2"}).err, Not(hint));
}

// findings-3: D3
TEST(RunInput, VariablesThatAreReplacedAreHintedAt) {
  const CommandSetup other{
      .environment = {"OMP_NUM_THREADS=7", "MKL_NUM_THREADS=1", "TUTTI_THREADS"}};
  const auto hint = HasSubstr(
      "hint: OMP_NUM_THREADS is 7 here, and 1 for the workers, as --threads is "
      "not given");
  EXPECT_THAT(run_script({"-n", "1"}, "true", other).err, hint);
  EXPECT_THAT(run_script({"-n", "1", "--threads", "1"}, "true", other).err, Not(hint));
  EXPECT_THAT(run_script({"-n", "1"}, "true", {.environment = {"OMP_NUM_THREADS=1"}}).err,
              Not(hint));
}

// findings-3: D5
TEST(RunInput, WorkersThatDoNotJoinAreToldWhileTheyRun) {
  const auto note = HasSubstr("note: after 0.2 s no worker has called tutti::Job::join()");
  RunningCommand command({"run", "-n", "2", "--join-notice", "0.2", "sleep", "100"});
  EXPECT_TRUE(command.wait_for("after 0.2 s no worker has called tutti::Job::join()"));
  EXPECT_THAT(run_script({"-n", "1", "--join-notice", "0.2"}, "sleep 0.5").err, Not(note));
  EXPECT_THAT(run_script({"-n", "2", "--join-notice", "5"}, "sleep 0.1").err,
              Not(HasSubstr("after 5 s")));
}

// promise: errors#deadlines, launcher#what-a-worker-gets
TEST(RunInput, DeadlineReachesTheWorkers) {
  EXPECT_EQ(run_script({"-n", "1", "--deadline", "2.5"}, "echo $TUTTI_DEADLINE").out, "[0] 2.5\n");
  EXPECT_EQ(
      run_script({"-n", "1"}, "echo $TUTTI_DEADLINE", {.environment = {"TUTTI_DEADLINE=9"}}).out,
      "[0] 9\n");
}

// promise: launcher#what-a-worker-gets
TEST(RunInput, BindGivesEachWorkerItsProcessors) {
  const auto allowed = host_system()->allowed_processors();
  const int workers = std::min<int>(static_cast<int>(allowed.size()), 4);
  const auto run = run_script({"-n", std::to_string(workers), "--bind", "core"},
                              "grep Cpus_allowed_list /proc/self/status");
  EXPECT_EQ(run.status, 0);
  for (int rank = 0; rank < workers; ++rank)
    EXPECT_THAT(run.out, HasSubstr(fmt::format("[{}] Cpus_allowed_list:\t{}\n", rank,
                                               allowed[static_cast<std::size_t>(rank)])));
}

// promise: launcher#where-the-time-goes
TEST(RunInput, ProfilesOfAllWorkersBecomeOne) {
  const TemporaryFolder folder;
  const std::string file = folder.file("run.json");
  std::ofstream(file + ".rank1") << "left by an earlier run";
  const auto run =
      run_script({"-n", "3", "--profile", file},
                 "[ $TUTTI_RANK = 1 ] || printf '{\"traceEvents\":[{\"pid\":%s}]}' $TUTTI_RANK "
                 "> $TUTTI_PROFILE.rank$TUTTI_RANK");
  EXPECT_EQ(run.status, 0) << run.err;
  const auto merged = nlohmann::json::parse(read_file(file));
  ASSERT_EQ(merged["traceEvents"].size(), 2U);
  EXPECT_EQ(merged["traceEvents"][0]["pid"], 0);
  EXPECT_EQ(merged["traceEvents"][1]["pid"], 2);
  EXPECT_FALSE(std::filesystem::exists(file + ".rank0"));
}

TEST(RunInput, WorkersInheritOnlyTheirOwnEndOfTheRendezvous) {
  // 0, 1, 2, the socket, and the folder that ls itself has open.
  const auto run = run_script({"-n", "3"}, "ls /proc/self/fd | wc -l");
  EXPECT_THAT(lines_of(run.out), UnorderedElementsAre("[0] 5", "[1] 5", "[2] 5"));
}

// promise: launcher#tutti-run-starting-workers
TEST(Help, OfRunListsEveryOption) {
  const std::string help = run_command({"run", "--help"}).out;
  for (const std::string option : {"-n,--workers", "--threads", "--bind", "--cpu", "--deadline",
                                   "--restarts", "--log", "--profile"})
    EXPECT_THAT(help, HasSubstr("\n  " + option + " "));
}

TEST(Help, NamesTheCommandsAndShowsAnExample) {
  const auto help = run_command({"--help"});
  EXPECT_EQ(help.status, 0);
  EXPECT_THAT(help.out, HasSubstr("tutti run -n 4 ./train"));
  EXPECT_THAT(help.out, HasSubstr("doctor"));
  const auto run_help = run_command({"run", "--help"});
  EXPECT_EQ(run_help.status, 0);
  EXPECT_THAT(run_help.out, HasSubstr("Usage: tutti run (-n N | --hosts a:N,b:N) [options] [--] "
                                      "program [arguments]"));
  EXPECT_THAT(run_help.out, HasSubstr("--bind"));
  const auto version = run_command({"--version"});
  EXPECT_EQ(version.status, 0);
  EXPECT_EQ(version.out, "tutti " TUTTI_VERSION "\n");
}

}  // namespace
}  // namespace tutti
