#include "torch/model/parameter_roles.h"

#include "torch/training.h"

namespace tutti::test::parameter_roles_cases {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

using AllNames = std::vector<std::vector<std::string>>;

ParameterRoles::Where is(const std::string& name) {
  return [name](const std::string& one) { return one == name; };
}

NamedTensors tensors(const std::vector<std::string>& names) {
  NamedTensors all;
  for (const auto& name : names) all.emplace_back(name, torch::zeros({4, 3}));
  return all;
}

AllNames each_alone(const NamedTensors& tensors) {
  AllNames all;
  for (const auto& item : tensors) all.push_back({item.first});
  return all;
}

FoundRoles found(const ParameterRoles& roles, const NamedTensors& parameters,
                 const NamedTensors& buffers = {}) {
  return find_roles(roles, nullptr, parameters, each_alone(parameters), buffers);
}

TEST(ParameterRoles, AreFoundByAnyNameOfAParameter) {
  const auto parameters = tensors({"a", "b", "c"});
  const AllNames names = {{"a"}, {"b", "tied"}, {"c"}};
  const ParameterRoles roles{
      .row_sparse = is("tied"), .per_replica = is("c"), .placement = [](const std::string& name) {
        return name == "tied" ? std::optional<std::int64_t>(2) : std::nullopt;
      }};
  const auto got = find_roles(roles, nullptr, parameters, names, tensors({"c", "d"}));
  EXPECT_THAT(got.row_sparse, ElementsAre(false, true, false));
  EXPECT_THAT(got.per_replica, ElementsAre(false, false, true));
  EXPECT_THAT(got.owners, ElementsAre(-1, 2, -1));
  EXPECT_THAT(got.replica_buffers, ElementsAre(true, false));
  EXPECT_THAT(got.unmatched, IsEmpty());
  EXPECT_EQ(got.owned(), 1u);
}

TEST(ParameterRoles, EmbeddingsTellWhetherTheirGradientsAreRowSparse) {
  torch::nn::Sequential model(torch::nn::Embedding(torch::nn::EmbeddingOptions(5, 3).sparse(true)),
                              torch::nn::Linear(3, 2));
  NamedTensors parameters;
  for (const auto& item : model->named_parameters()) {
    parameters.emplace_back(item.key(), item.value());
  }
  const auto names = each_alone(parameters);
  EXPECT_THAT(find_roles({}, model.get(), parameters, names, {}).row_sparse,
              ElementsAre(true, false, false));
  torch::nn::Embedding renormalised(torch::nn::EmbeddingOptions(5, 3).max_norm(1.0));
  const NamedTensors weight = {{"weight", renormalised->weight}};
  EXPECT_EQ(text_of<Unsupported>(
                [&] { find_roles({}, renormalised.get(), weight, each_alone(weight), {}); }),
            "\"weight\" is an embedding with max_norm, which changes it in forward, on each worker "
            "by what this one looks up");
}

TEST(ParameterRoles, ThatHoldForNothingAreListed) {
  const auto nobody = [](const std::string&) { return std::optional<std::int64_t>(); };
  const auto got =
      found({.row_sparse = is("x"), .per_replica = is("x"), .placement = nobody}, tensors({"a"}));
  EXPECT_THAT(got.unmatched, ElementsAre("row_sparse", "per_replica", "placement"));
  EXPECT_THAT(found({.per_replica = is("x")}, tensors({"a"}), tensors({"x"})).unmatched, IsEmpty());
}

TEST(ParameterRoles, ThatContradictEachOtherAreRefused) {
  const auto parameters = tensors({"a"});
  const auto owner = [](std::int64_t rank) {
    return [rank](const std::string&) { return std::optional<std::int64_t>(rank); };
  };
  EXPECT_EQ(text_of<InvalidArgument>([&] { found({.placement = owner(-2)}, parameters); }),
            "\"a\" has the owner -2: they count from 0");
  EXPECT_EQ(text_of<InvalidArgument>(
                [&] { found({.per_replica = is("a"), .placement = owner(0)}, parameters); }),
            "\"a\" has an owner, and is per replica");
  EXPECT_EQ(text_of<Unsupported>(
                [&] { found({.row_sparse = is("a"), .per_replica = is("a")}, parameters); }),
            "row-sparse \"a\" is per replica");
  EXPECT_EQ(text_of<InvalidArgument>([&] {
              found({.row_sparse = is("a")}, {{"a", torch::zeros({})}});
            }),
            "row-sparse \"a\" has no rows");
  const ParameterRoles by_length{.placement = [](const std::string& name) {
    return std::optional(static_cast<std::int64_t>(name.size()));
  }};
  EXPECT_EQ(text_of<InvalidArgument>([&] {
              find_roles(by_length, nullptr, parameters, {{"a", "tied"}}, {});
            }),
            "\"a\" is also called \"tied\", and has two owners: 1 and 4");
}

}  // namespace
}  // namespace tutti::test::parameter_roles_cases
