// The order of the folders of src/ and apps/, and of the public headers, each of which is part of a
// folder of src/, read from their includes: CONTRIBUTING.md, "Layout".

#include <algorithm>
#include <filesystem>
#include <map>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include <gmock/gmock.h>

#include "docs/house_exceptions.h"
#include "docs/source_files.h"

namespace tutti::test {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using Names = std::set<std::string>;

/// What each folder may include, besides itself. What is not there, it must not know.
const std::map<std::string, Names> kMayInclude = {
    {"base", {}},
    {"environment", {"base"}},
    {"mpi", {"base", "environment"}},
    {"mpi/table", {"mpi"}},
    {"job/wire", {"base"}},
    {"job/life", {"base", "job/wire"}},
    {"job/hosts", {"base", "environment", "job/wire"}},
    {"job/rendezvous", {"base", "job/wire", "job/life", "job/hosts"}},
    {"job", {"base", "environment", "mpi", "job/wire", "job/life", "job/hosts", "job/rendezvous"}},
    {"memory", {"base"}},
    {"kernels", {"base"}},
    {"kernels/rules", {"base", "kernels"}},
    {"comm/link", {"base", "environment", "mpi", "job/wire", "job/hosts"}},
    {"c10d", {"base", "environment", "comm/link"}},
    {"comm/hosts", {"base", "job/wire", "job", "kernels"}},
    {"comm/local", {"base", "job/wire", "job", "kernels", "memory", "comm/hosts"}},
    {"comm",
     {"base", "environment", "job/wire", "job", "kernels", "memory", "comm/link", "comm/hosts",
      "comm/local"}},
    {"codec", {"base", "kernels"}},
    {"run/files", {"base", "kernels", "memory"}},
    {"run/numbers", {"base", "kernels", "memory"}},
    {"run/data", {"base", "kernels"}},
    {"run/log", {"base", "kernels", "run/files", "run/numbers"}},
    {"run/state", {"base", "kernels", "run/files", "run/data", "run/log", "run/numbers"}},
    {"run/planning", {"base"}},
    {"run/pipeline", {"base", "kernels"}},
    {"sync/plan", {"base", "kernels", "memory", "comm"}},
    {"sync/nodes", {"base", "job/wire", "job", "kernels", "memory", "comm", "sync/plan"}},
    {"sync/hosts",
     {"base", "job/wire", "job", "kernels", "memory", "comm", "comm/hosts", "sync/plan",
      "sync/nodes"}},
    {"sync/step",
     {"base", "job/wire", "job", "kernels", "memory", "comm", "sync/plan", "sync/nodes",
      "sync/hosts"}},
    {"sync/rows", {"base", "kernels", "memory", "comm", "sync/plan", "sync/nodes", "sync/step"}},
    {"sync/coded",
     {"base", "kernels", "memory", "comm", "codec", "sync/plan", "sync/nodes", "sync/step"}},
    {"sync/update",
     {"base", "kernels", "kernels/rules", "memory", "comm", "sync/plan", "sync/nodes",
      "sync/step"}},
    {"sync/averaging",
     {"base", "kernels", "kernels/rules", "memory", "comm", "codec", "sync/plan", "sync/nodes",
      "sync/step", "sync/update"}},
    {"torch/device", {"base", "environment", "job", "comm"}},
    {"torch/model",
     {"base", "environment", "kernels", "memory", "comm", "run/files", "run/numbers", "sync/plan",
      "sync/nodes", "sync/step", "torch/device"}},
    {"torch/gradients",
     {"base", "kernels", "memory", "comm", "sync/plan", "sync/nodes", "sync/step", "torch/device",
      "torch/model"}},
    {"torch/sums",
     {"base", "job", "comm", "sync/plan", "sync/nodes", "sync/step", "torch/device",
      "torch/model"}},
    {"torch/data_parallel",
     {"base", "c10d", "kernels", "memory", "job", "comm", "codec", "run/data", "run/numbers",
      "sync/plan", "sync/nodes", "sync/step", "sync/rows", "sync/coded", "torch/device",
      "torch/model", "torch/gradients", "torch/split", "torch/sums"}},
    {"torch/averaged",
     {"base", "memory", "job", "comm", "codec", "sync/plan", "sync/step", "sync/averaging",
      "torch/model", "torch/split"}},
    {"torch/ops", {"base", "comm", "torch/model"}},
    {"torch/split",
     {"base", "memory", "comm", "run/files", "run/data", "torch/model", "torch/ops"}},
    {"torch/classes",
     {"base", "memory", "kernels", "kernels/rules", "job", "comm", "run/files", "run/data",
      "run/state", "sync/nodes", "sync/step", "sync/update", "torch/model", "torch/run",
      "torch/ops", "torch/split"}},
    {"torch/recompute", {"base", "kernels", "run/planning", "torch/model"}},
    {"torch/recurrent", {"base", "torch/model"}},
    {"torch/run",
     {"base", "kernels", "job", "comm", "run/files", "run/log", "run/numbers", "run/state",
      "sync/plan", "sync/coded", "sync/update", "torch/model"}},
    {"torch/optim", {"base", "kernels/rules", "sync/plan", "sync/update", "torch/model"}},
    {"torch/shards", {"base",         "kernels",      "kernels/rules",
                      "memory",       "job",          "comm",
                      "codec",        "run/files",    "run/data",
                      "run/numbers",  "run/pipeline", "sync/plan",
                      "sync/nodes",   "sync/step",    "sync/rows",
                      "sync/coded",   "sync/update",  "sync/averaging",
                      "torch/device", "torch/model",  "torch/gradients",
                      "torch/run",    "torch/optim",  "torch/classes"}},
    {"torch/pipeline",
     {"base", "memory", "comm", "run/numbers", "sync/plan", "sync/nodes", "sync/step",
      "torch/model", "torch/shards"}},
    {"torch/trainer", {"base",           "c10d",           "kernels",
                       "kernels/rules",  "memory",         "job",
                       "comm",           "codec",          "run/files",
                       "run/log",        "run/data",       "run/numbers",
                       "run/state",      "sync/plan",      "sync/nodes",
                       "sync/step",      "sync/rows",      "sync/coded",
                       "sync/update",    "sync/averaging", "torch/device",
                       "torch/model",    "torch/run",      "torch/optim",
                       "torch/classes",  "torch/pipeline", "torch/shards",
                       "torch/gradients"}},
    {"apps/tutti/text", {"base"}},
    {"apps/tutti/run",
     {"base", "environment", "job/hosts", "job/rendezvous", "job", "apps/tutti/text"}},
    {"apps/tutti/doctor",
     {"base", "environment", "mpi", "kernels", "memory", "job/hosts", "apps/tutti/text",
      "apps/tutti/run"}},
    {"apps/tutti/compare", {"base", "run/files", "run/log", "apps/tutti/text"}},
    {"apps/tutti/schedule", {"base", "run/pipeline", "apps/tutti/text"}},
    {"apps/tutti/export", {"base", "apps/tutti/text"}},
    {"apps/tutti",
     {"base", "apps/tutti/text", "apps/tutti/run", "apps/tutti/doctor", "apps/tutti/compare",
      "apps/tutti/schedule", "apps/tutti/export"}},
    {"apps/export_torch", {"base", "torch/run"}},
};

/// The folder that each public header belongs to.
const std::map<std::string, std::string> kPublic = {
    {"averaged_parallel.h", "torch/averaged"},
    {"clip.h", "base"},
    {"codec.h", "codec"},
    {"data_parallel.h", "torch/data_parallel"},
    {"divide.h", "torch/model"},
    {"distributed_sampler.h", "torch/data_parallel"},
    {"dtype.h", "base"},
    {"environment.h", "environment"},
    {"error.h", "base"},
    {"group.h", "comm"},
    {"job.h", "job"},
    {"limits.h", "base"},
    {"load_weights.h", "torch/run"},
    {"named_module.h", "torch/run"},
    {"local_device.h", "torch/device"},
    {"loss_scale.h", "run/numbers"},
    {"loss_scaler.h", "torch/data_parallel"},
    {"link.h", "c10d"},
    {"memory_plan.h", "run/planning"},
    {"metrics.h", "run/numbers"},
    {"ops.h", "torch/ops"},
    {"optimizer.h", "kernels/rules"},
    {"parallel_cross_entropy.h", "torch/classes"},
    {"parallel_embedding.h", "torch/split"},
    {"parallel_linear.h", "torch/split"},
    {"partial.h", "torch/ops"},
    {"pipeline_schedule.h", "run/pipeline"},
    {"pipeline_timeline.h", "run/pipeline"},
    {"progress.h", "run/data"},
    {"pipeline.h", "torch/shards"},
    {"recompute.h", "torch/recompute"},
    {"recompute_sequential.h", "torch/recompute"},
    {"recurrent.h", "torch/recurrent"},
    {"sample_order.h", "run/data"},
    {"schedule.h", "run/numbers"},
    {"shard_index.h", "torch/split"},
    {"shard_loader.h", "torch/trainer"},
    {"share.h", "base"},
    {"split_module.h", "torch/split"},
    {"split_tensors.h", "torch/split"},
    {"step_report.h", "sync/step"},
    {"sum_engine.h", "torch/sums"},
    {"averaging.h", "codec"},
    {"sync_batch_norm.h", "torch/split"},
    {"tensorboard.h", "torch/run"},
    {"tensors.h", "torch/model"},
    {"torch_optimizer.h", "torch/optim"},
    {"traffic.h", "sync/step"},
    {"trainer.h", "torch/shards"},
    {"trainer_options.h", "torch/shards"},
};

struct Source {
  std::string name;    ///< "sync/plan/plan.cpp", "tutti/job.h"
  std::string folder;  ///< "sync/plan"
  std::vector<std::string> includes;
};

std::vector<Source> sources() {
  std::vector<Source> all;
  for (const auto& file : source_files()) {
    const fs::path path(file.name);
    const auto of_public = kPublic.find(path.filename().string());
    const bool is_public = file.folder() == "include/tutti";
    if (is_public && of_public == kPublic.end()) continue;  // tutti.h has all
    // As they are included: those of src/ and include/ by their folders below it.
    const auto name =
        file.name.starts_with("apps/") ? path : path.lexically_relative(*path.begin());
    all.push_back({name.string(), is_public ? of_public->second : name.parent_path().string(),
                   includes_of(file.text)});
  }
  return all;
}

/// The folder of what is included as `include`; "" for what lies elsewhere (hwy/highway.h).
std::string folder_of(const std::string& include) {
  const fs::path path(include);
  if (path.parent_path() == "tutti") {
    const auto found = kPublic.find(path.filename());
    return found == kPublic.end() ? "tutti" : found->second;
  }
  return kMayInclude.contains(path.parent_path().string()) ? path.parent_path().string() : "";
}

/// "sync/plan/plan.h includes torch/model/tensors.h: …" of each include that is against the order.
std::vector<std::string> offences(const std::vector<Source>& all) {
  std::vector<std::string> found;
  for (const auto& source : all) {
    const auto allowed = kMayInclude.find(source.folder);
    if (allowed == kMayInclude.end()) {
      found.push_back(source.name + " lies in a folder that kMayInclude does not have");
      continue;
    }
    for (const auto& include : source.includes) {
      const auto folder = folder_of(include);
      if (folder.empty() || folder == source.folder || allowed->second.contains(folder)) continue;
      found.push_back(source.name + " includes " + include + ": " + source.folder +
                      " must not know " + folder);
    }
  }
  std::ranges::sort(found);
  return found;
}

TEST(Layers, NoSourceIncludesWhatItsFolderMustNotKnow) {
  const auto all = sources();
  EXPECT_GT(all.size(), 500U);
  Names listed;
  for (const auto& [text, count] : house_exceptions(/*of_includes=*/true)) listed.insert(text);
  Names found;
  for (const auto& offence : offences(all)) {
    found.insert("include " + offence.substr(0, offence.find(": ")));
  }
  EXPECT_EQ(found, listed) << "house_exceptions.txt may only shrink";
}

/// Folders that may include what may, over others, include them.
Names in_a_cycle(const std::map<std::string, Names>& may_include) {
  Names cyclic;
  for (const auto& [folder, direct] : may_include) {
    Names reached = direct;
    for (bool more = true; more;) {
      Names next = reached;
      for (const auto& name : reached)
        next.insert(may_include.at(name).begin(), may_include.at(name).end());
      more = next.size() > reached.size();
      reached = std::move(next);
    }
    if (reached.contains(folder)) cyclic.insert(folder);
  }
  return cyclic;
}

TEST(Layers, NoFoldersIncludeEachOther) {
  EXPECT_THAT(in_a_cycle(kMayInclude), IsEmpty());
  EXPECT_THAT(in_a_cycle({{"a", {}}, {"b", {"a", "d"}}, {"c", {"b"}}, {"d", {"c"}}}),
              ElementsAre("b", "c", "d"));
}

TEST(Layers, EachPublicHeaderHasAFolder) {
  for (const auto& entry : fs::directory_iterator(source_folder() / "include" / "tutti")) {
    const auto name = entry.path().filename().string();
    if (name == "tutti.h") continue;
    EXPECT_TRUE(kPublic.contains(name)) << name;
  }
}

TEST(Layers, AnIncludeUpwardOrOfASiblingIsNamedWithBothFiles) {
  EXPECT_THAT(
      offences(
          {{"job/hosts/host_order.h", "job/hosts", {"job/wire/frame.h", "job/rendezvous/broker.h"}},
           {"kernels/block_fold.cpp", "kernels", {"kernels/fold.h", "base/check.h"}},
           {"kernels/norm.h", "kernels", {"job/wait.h", "tutti/group.h"}},
           {"run/files/run_fingerprint.h", "run/files", {"sync/plan/plan.h"}},
           {"extra/new.h", "extra", {}}}),
      ElementsAre(
          "extra/new.h lies in a folder that kMayInclude does not have",
          "job/hosts/host_order.h includes job/rendezvous/broker.h: job/hosts must not know "
          "job/rendezvous",
          "kernels/norm.h includes job/wait.h: kernels must not know job",
          "kernels/norm.h includes tutti/group.h: kernels must not know comm",
          "run/files/run_fingerprint.h includes sync/plan/plan.h: run/files must not know "
          "sync/plan"));
  EXPECT_THAT(includes_of("#include \"a/b.h\"\n#include <c>\n// #include \"d.h\"\n"),
              ElementsAre("a/b.h"));
}

}  // namespace
}  // namespace tutti::test
