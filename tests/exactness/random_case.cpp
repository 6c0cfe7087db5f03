#include "exactness/random_case.h"

#include <algorithm>
#include <fstream>
#include <sstream>
#include <stdexcept>

namespace tutti::test::exact {
namespace {

using Options = std::vector<std::string>;

/// What the bytes of both kinds of runs depend on.
void draw_what_it_is(Choices& one) {
  const bool trains = one.of("front", {"trainer", "trainer", "parallel"}) == "trainer";
  // Also what is refused: else only what goes together, in most cases.
  const bool bold = one.chance("bold", 10);
  one.of("model", trains ? Options{"mlp", "mlp", "conv", "lstm", "gru", "embedding", "tables",
                                   "tables", "tied", "branches", "branches", "wide"}
                         : Options{"mlp", "lstm", "embedding", "tables", "tied", "branches",
                                   "branches", "wide"});
  one.between("width", 3, 40);
  one.chance("dropout", 30);
  one.chance("constants", 20);
  one.between("seed", 0, 999999);
  one.between("steps", 2, 5);
  one.between("shards", 1, 11);
  one.of("data", trains ? Options{"seed", "generator", "indices", "indices"}
                        : Options{"seed", "generator"});
  one.between("rows", 1, 5);
  one.between("samples", 1, 60);
  one.of("weights", {"ones", "whole", "tenths", "tenths", "tenths", "some-zero"});
  one.chance("gaps", 25);
  one.between("fault-step", 1, 5);
  one.between("fault-shard", 0, 10);
  Options types = {"float32", "float32", "float32", "bfloat16", "half"};
  if (bold || !trains) types = {"float32", "float64", "float64", "bfloat16"};
  // libtorch adds no sparse gradients of half precision.
  if (one.is("model", "tables")) {
    std::replace(types.begin(), types.end(), std::string("half"), std::string("bfloat16"));
  }
  one.of("dtype", types);
}

void draw_rules(Choices& one) {
  const bool trains = one.is("front", "trainer");
  const bool bold = one.has("bold");
  const bool corrects = !one.is("correction", "none");
  const bool has_tables = one.is("model", "tables");
  const bool is_per_replica = !one.is("per-replica", "none") || !one.is("averaging", "none");
  Options rules = {"sgd",     "sgd-decay",  "momentum", "nesterov",           "dampened",
                   "adam",    "adam-decay", "adamw",    "adamw-as-published", "adagrad",
                   "amsgrad", "rms-prop",   "lion"};
  // Rows, and what logical workers have for themselves, are updated by native rules alone.
  if (bold || (!is_per_replica && !has_tables && one.is("owner", "none"))) {
    rules.insert(rules.end(), {"rmsprop", "rmsprop"});
  }
  if ((corrects && !bold) || !trains) rules = {"sgd"};
  one.of("rule", rules);
  rules.insert(rules.begin(), 20, "same");
  one.of("bias-rule", trains ? rules : Options{"same"});
  one.of("torch-rule", trains ? Options{"sgd"}
                       : has_tables
                           ? Options{"sgd", "adagrad"}
                           : Options{"sgd", "momentum", "adam", "adamw", "adagrad", "rmsprop"});
  one.of("schedule", trains
                         ? Options{"constant", "constant", "cosine", "warm-up", "step-decay", "own"}
                         : Options{"constant"});
  one.of("rates", trains ? Options{"steps", "steps", "epochs"} : Options{"steps"});
  one.of("order", trains ? Options{"shuffled", "shuffled", "sequential", "weighted", "own"}
                         : Options{"shuffled"});
  one.of("clip", !trains ? Options{"none", "none", "norm"}
                 : !bold && corrects
                     ? Options{"none"}
                     : Options{"none", "none", "none", "norm", "parameter-norm", "value", "all"});
  one.of("scale", trains ? Options{"none", "none", "static", "dynamic"} : Options{"none"});
}

void draw_trainer(Choices& one) {
  const bool trains = one.is("front", "trainer");
  const bool bold = one.has("bold");
  const bool is_double = one.is("dtype", "float64");
  const Options codecs = {"none", "none",      "none", "none", "half",     "bfloat16",
                          "int8", "threshold", "topk", "topk", "topk-warm"};
  const bool coded =
      one.of("codec", trains && (bold || !is_double) ? codecs : Options{"none"}) != "none";
  const bool selects = one["codec"].starts_with("topk") || one.is("codec", "threshold");
  one.of("scope", coded ? Options{"bucket", "tensor"} : Options{"bucket"});
  one.of("fusion", {"2097152", "1", "30", "1000"});
  one.of("clamp", coded ? Options{"none", "none", "0.01"} : Options{"none"});
  one.of("feedback", coded ? Options{"on", "on", "on", "off"} : Options{"on"});
  const bool corrects = selects && one.is("feedback", "on");
  one.of("correction", corrects ? Options{"none", "none", "plain", "nesterov"} : Options{"none"});
  one.between("logical", 1, trains ? std::min<std::int64_t>(one.number("shards"), 6) : 1);
  const bool has_tables = one.is("model", "tables");
  const bool may_average = trains && (bold || (!coded && !has_tables));
  Options policies = {"none"};
  if (may_average) {
    policies = {"none",  "none",    "none",   "none",      "local",  "local",
                "block", "partial", "diloco", "fragments", "overlap"};
    if (bold || !is_double) policies.emplace_back("diloco-int8");
  }
  one.of("averaging", policies);
  const bool is_due = !one.is("averaging", "none");
  const bool is_equal = is_due && (bold || !one.is("averaging", "overlap"));
  one.of("state-at-averaging", is_equal ? Options{"keep", "average", "reset"} : Options{"keep"});
  Options who = {"none"};
  if (trains && !is_due) who = {"none", "none", "none", "none", "biases"};
  if (trains && !is_due && one.is("model", "conv")) who.insert(who.end(), 2, "norms");
  const bool is_per_replica = one.of("per-replica", who) != "none" || is_due;
  one.of("owner", trains && (bold || !is_per_replica)
                      ? Options{"none", "none", "none", "none", "biases", "weights"}
                      : Options{"none"});
  draw_rules(one);
  one.of("average", trains && (bold || !is_per_replica) ? Options{"none", "none", "none", "0.9"}
                                                        : Options{"none"});
  one.of("buffers", trains ? Options{"usual", "usual", "first", "keep"} : Options{"usual"});
  one.of("fault", trains ? Options{"none", "none", "none", "nan", "inf", "huge"} : Options{"none"});
  one.of("answer", trains ? Options{"loss", "loss", "loss", "gradients"} : Options{"loss"});
  one.chance("metrics", trains ? 30 : 0);
  one.chance("carry", trains && (one.is("model", "lstm") || one.is("model", "gru")) ? 60 : 0);
  one.of("edit", trains ? Options{"none", "none", "none", "none", "parameters", "buffers"}
                        : Options{"none"});
  one.between("edit-step", 1, 5);
  one.chance("evaluate", trains ? 25 : 0);
  one.chance("gradients", trains ? 25 : 0);  // looks at them between the halves
  one.chance("log", trains ? 25 : 0);
  one.chance("keep", trains ? 35 : 0);  // values of the program's own
  one.of("divide",
         trains ? bold || !is_per_replica
                      ? Options{"weight", "weight", "weight", "contributors", "not-at-all"}
                      : Options{"weight"}
                : Options{"weight", "contributors", "contributors", "contributors", "not-at-all"});
  one.of("backwards", trains ? Options{"one"} : Options{"one", "two"});
}

/// What no byte may depend on.
void draw_how_it_runs(Choices& one) {
  const bool trains = one.is("front", "trainer");
  // What an owner's optimizer keeps, a DataParallel's program would have to gather.
  const bool may_stop = trains || one.is("rank-owner", "none");
  const auto stops = one.of("stops", may_stop ? Options{"0", "0", "1", "1", "2"} : Options{"0"});
  const Options several = {"2", "2", "3", "3", "4", "5", "8"};
  const Options any = {"1", "2", "2", "3", "3", "4", "5", "8"};
  one.of("workers", stops == "0" ? several : any);
  one.of("workers-2", any);
  one.of("workers-3", any);
  one.between("stop-1", 1, 4);
  one.between("stop-2", 1, 4);
  one.chance("beyond", trains ? 20 : 0);  // a step after the one that was saved
  one.of("remake", trains ? Options{"0", "0", "0", "1", "2", "3"} : Options{"0"});
  // A Run that takes the place of another, between steps.
  one.of("rebuild", trains ? Options{"none", "none", "some", "all"} : Options{"none"});
  one.of("speeds", trains ? Options{"equal", "equal", "uneven"} : Options{"equal"});
  one.of("message_format",
         one.is("codec", "none") ? Options{"by-size"} : Options{"by-size", "sparse", "dense"});
  one.of("halves", trains ? Options{"none", "all", "some"} : Options{"none"});
  one.of("throw", trains ? Options{"none", "none", "none", "before", "after", "backward"}
                         : Options{"none", "none", "before", "after"});
  one.between("throw-step", 1, 5);
  one.between("throw-shard", 0, 10);
  one.of("digests", {"100", "1", "2", "0"});
  one.of("audit", trains ? Options{"100", "1", "2", "0"} : Options{"0"});
  one.of("bucket", {"large", "small"});
  one.of("told", trains || one.has("dropout") || one.is("data", "generator")
                     ? Options{"yes"}
                     : Options{"yes", "no"});
  one.of("cuts", trains ? Options{"even"} : Options{"even", "uneven"});
  one.chance("late", 15);  // workers that come at different times
  const bool has_layers = one.is("model", "mlp") || one.is("model", "conv") ||
                          one.is("model", "tied") || one.is("model", "wide") ||
                          one.is("model", "embedding");
  const bool may_be_staged = trains && has_layers && one.is("codec", "none") &&
                             one.is("averaging", "none") && one.is("per-replica", "none") &&
                             one.is("answer", "loss");
  one.of("stages", may_be_staged ? Options{"0", "0", "2", "2", "3"} : Options{"0"});
  one.of("stage-order", {"1f1b", "gpipe", "zb-h1"});
}

std::vector<std::string> fields_of(const std::string& line) {
  std::vector<std::string> fields;
  std::stringstream stream(line.substr(1));
  for (std::string field; std::getline(stream, field, '|');) {
    const auto begin = field.find_first_not_of(' ');
    fields.push_back(begin == std::string::npos
                         ? ""
                         : field.substr(begin, field.find_last_not_of(' ') + 1 - begin));
  }
  return fields;
}

std::string rule_feature(const Choices& one, const std::string& rule) {
  if (rule == "same") return rule_feature(one, one["rule"]);
  if (rule == "sgd") return "SGD";
  if (rule == "rmsprop") return "torch's RMSprop";
  if (rule == "adagrad") return "Adagrad";
  if (rule == "amsgrad") return "AMSGrad";
  if (rule == "rms-prop") return "RmsProp";
  if (rule == "lion") return "Lion";
  if (rule.starts_with("adamw")) return "AdamW";
  return rule.starts_with("adam") ? "Adam" : "SGD with momentum";  // or with weight decay
}

}  // namespace

Choices draw_case(std::uint64_t seed, std::uint64_t number, const Choices::Fixed& fixed) {
  Choices one(seed, number, fixed);
  draw_what_it_is(one);
  draw_trainer(one);
  one.of("rank-owner", one.is("front", "trainer") || !one.is("clip", "none")
                           ? Options{"none"}
                           : Options{"none", "none", "none", "some"});
  draw_how_it_runs(one);
  one.require_all_used();
  return one;
}

Stretch reference_of(const Choices& one) { return {.end = one.number("steps")}; }

std::vector<Stretch> stretches_of(const Choices& one) {
  const auto steps = one.number("steps");
  std::vector<std::int64_t> ends;
  for (std::int64_t stop = 1; stop <= one.number("stops"); ++stop) {
    ends.push_back(std::min(one.number("stop-" + std::to_string(stop)), steps - 1));
  }
  std::sort(ends.begin(), ends.end());
  ends.push_back(steps);
  std::vector<Stretch> stretches;
  for (const auto end : ends) {
    const auto number = std::to_string(stretches.size() + 1);
    stretches.push_back(
        {.workers = static_cast<int>(one.number(number == "1" ? "workers" : "workers-" + number)),
         .begin = stretches.empty() ? 0 : stretches.back().end,
         .end = end,
         .is_reference = false,
         .is_last = stretches.size() + 1 == ends.size()});
  }
  return stretches;
}

Refusals::Refusals(const std::string& page) {
  std::ifstream file(page);
  if (!file) throw std::runtime_error("cannot read " + page);
  std::vector<std::string> header;
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with('|')) {
      header.clear();
      continue;
    }
    const auto fields = fields_of(line);
    if (header.empty()) {
      header = fields;
      continue;
    }
    if (line.starts_with("|---")) continue;
    // Names that none of these runs has: tests/torch/trainer/combinations_test.cpp trains them.
    const auto is_absent = [](const std::string& name) {
      return name == "on a device" || name == "complex parameters" || name == "TorchScript";
    };
    for (std::size_t k = 1; k < fields.size(); ++k) {
      if (is_absent(fields[0]) || is_absent(header[k])) continue;
      names_.insert({fields[0], header[k]});
      if (fields[k] == "refused") pairs_.emplace(fields[0], header[k]);
    }
  }
  if (pairs_.empty()) throw std::runtime_error(page + " has no tables");
}

std::string Refusals::reason(const Choices& one) const {
  if (!one.is("front", "trainer")) return {};
  for (const auto& features : features_of(one)) {
    for (const auto& a : features) {
      for (const auto& b : features) {
        if (pairs_.contains({a, b})) return a + " × " + b;
      }
    }
  }
  return {};
}

std::vector<std::set<std::string>> features_of(const Choices& one) {
  std::set<std::string> all;
  const auto& codec = one["codec"];
  if (codec == "none") all.insert("no codec");
  for (const auto* name : {"half", "bfloat16", "int8", "threshold"}) {
    if (codec == name) all.insert(codec);
  }
  if (codec.starts_with("topk")) {
    all.insert(one.is("scope", "tensor") ? "top-K of tensors" : "top-K of buckets");
    if (one.is("feedback", "off")) all.insert("top-K without feedback");
  }
  if (!one.is("clamp", "none")) all.insert("clamp before the codec");
  const auto& clip = one["clip"];
  if (clip == "norm" || clip == "all") all.insert("clip by norm");
  if (clip == "parameter-norm" || clip == "all") all.insert("clip by parameter norm");
  if (clip == "value" || clip == "all") all.insert("clip by value");
  if (!one.is("scale", "none")) all.insert(one["scale"] + " loss scale");
  if (one.is("divide", "contributors")) all.insert("divided by contributors");
  if (one.is("divide", "not-at-all")) all.insert("sums");
  if (!one.is("average", "none")) all.insert("averages of the parameters");
  if (one.is("averaging", "local")) {
    all.insert(one.is("state-at-averaging", "average") ? "local SGD, averaged state"
               : one.is("state-at-averaging", "reset") ? "local SGD, reset state"
                                                       : "local SGD");
  }
  if (one.is("averaging", "block")) all.insert("block momentum");
  if (one.is("averaging", "partial")) all.insert("partial update");
  if (one.is("averaging", "diloco")) all.insert("DiLoCo");
  if (one.is("averaging", "fragments")) all.insert("DiLoCo in fragments");
  if (one.is("averaging", "diloco-int8")) all.insert("DiLoCo in 8 bits");
  if (one.is("averaging", "overlap")) all.insert("DiLoCo with overlap");

  // What is about a parameter, and not about others.
  std::vector<std::string> kinds = {"weight", "bias"};
  if (one.is("model", "tables")) kinds.emplace_back("table weight");
  if (one.is("model", "conv")) kinds.insert(kinds.end(), {"norm weight", "norm bias"});
  // Names such as "weight_ih_l0", which end neither way.
  if (one.is("model", "lstm") || one.is("model", "gru")) kinds.emplace_back("recurrent");
  std::vector<std::set<std::string>> found;
  for (const auto& kind : kinds) {
    auto features = all;
    const bool is_bias = kind.ends_with("bias");
    const bool is_per_replica = one.is("per-replica", "biases")
                                    ? is_bias
                                    : one.is("per-replica", "norms") && kind.starts_with("norm");
    const bool is_owned = kind != "recurrent" && one.is("owner", is_bias ? "biases" : "weights");
    const bool is_table = kind.starts_with("table");
    features.insert(rule_feature(one, one[is_bias ? "bias-rule" : "rule"]));
    if (is_per_replica) features.insert("per-replica biases");
    if (is_owned) features.insert("owned biases");
    if (is_table) features.insert("row-sparse table");
    const bool is_coded = !is_owned && !is_per_replica && !is_table;
    if (one.is("dtype", "float64") && (is_coded || codec == "none")) {
      features.insert("float64 parameters");
    }
    // Beside a clip it is refused whatever is coded.
    const bool corrects = !one.is("correction", "none") && (is_coded || clip != "none");
    if (corrects) features.insert("momentum correction");
    found.push_back(features);
  }
  return found;
}

}  // namespace tutti::test::exact
