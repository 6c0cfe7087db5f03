// Results of a segment that share memory with one another, with inputs or with leaves, and leaves
// that a segment makes: the plain run's gradients, or a refusal.

#include <algorithm>
#include <array>
#include <cstring>

#include "torch/model/overlap.h"
#include "torch/training.h"
#include "tutti/recompute.h"

namespace tutti::test::recompute_memory {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

using Call = std::function<TensorList(const TensorList&)>;

void expect_same_bytes(const TensorList& found, const TensorList& expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (std::size_t i = 0; i < found.size(); ++i) {
    ASSERT_EQ(found[i].defined(), expected[i].defined()) << i;
    if (!found[i].defined()) continue;
    const auto one = found[i].detach().cpu().contiguous();
    const auto other = expected[i].detach().cpu().contiguous();
    ASSERT_TRUE(one.sizes() == other.sizes()) << i;
    EXPECT_EQ(std::memcmp(one.const_data_ptr(), other.const_data_ptr(), one.nbytes()), 0) << i;
  }
}

/// A training step on a segment of an input, 4 × 6, and a parameter, 6 × 6: what a program does
/// with its input and the segment's results gives a list, whose squares are the loss.
struct Step {
  Step() { torch::manual_seed(4); }
  torch::Tensor start = torch::randn({4, 6});
  torch::Tensor weight = torch::randn({6, 6}).requires_grad_();

  using Use = std::function<TensorList(const torch::Tensor&, const TensorList&)>;
  /// The values, and the gradients of the input and the parameter.
  TensorList gradients(bool again, const Call& segment, const Use& use) const {
    torch::manual_seed(5);
    const auto x = start.clone().requires_grad_();
    const auto input = x * 1;
    const TensorList inputs{input};
    auto values =
        use(input, again ? recompute_list({.name = "block"}, segment, inputs) : segment(inputs));
    auto loss = torch::zeros({});
    for (const auto& value : values) loss = loss + value.square().sum();
    for (auto& value : values) value = value.detach().clone();
    const auto found = torch::autograd::grad({loss}, {x, weight}, {}, {}, false, true);
    values.insert(values.end(), found.begin(), found.end());
    return values;
  }
  void expect_the_plain_run(const Call& segment, const Use& use) const {
    expect_same_bytes(gradients(true, segment, use), gradients(false, segment, use));
  }
  std::string refusal(const Call& segment, const Use& use) const {
    return text_of<InvalidArgument>([&] { gradients(true, segment, use); });
  }
};

TensorList all_of(const torch::Tensor& /*input*/, const TensorList& results) { return results; }

/// Changes result `r` in place before all are used.
Step::Use after_a_change_of(std::size_t r) {
  return [r](const torch::Tensor& /*input*/, const TensorList& results) {
    torch::Tensor(results.at(r)).mul_(3);
    return results;
  };
}

// promise: recompute.h#recompute
TEST(RecomputeMemory, ATensorThatIsReturnedTwiceIsOneResult) {
  on_workers(1, [](const Job& /*job*/) {
    const Step step;
    const Call twice = [&](const TensorList& in) {
      const auto h = in[0].mm(step.weight);
      return TensorList{h, in[0] * 2, h};
    };
    const auto results = recompute_list({}, twice, {step.start});
    EXPECT_TRUE(results.at(0).is_same(results.at(2)));
    step.expect_the_plain_run(twice, all_of);
    for (const std::size_t r : {0, 1, 2}) step.expect_the_plain_run(twice, after_a_change_of(r));
    // Backward comes to the later one alone.
    step.expect_the_plain_run(twice, [](const torch::Tensor& input, const TensorList& all) {
      return TensorList{all.at(2), input};
    });
    // What was one tensor has to be one again.
    int runs = 0;
    EXPECT_THAT(step.refusal(
                    [&](const TensorList& in) {
                      const auto h = in[0].mm(step.weight);
                      return TensorList{h, ++runs == 1 ? h : h * 1};
                    },
                    all_of),
                HasSubstr("gives another result 1"));
  });
}

// promise: recompute.h#recompute
TEST(RecomputeMemory, AChangeInPlaceOfOneOfTwoResultsThatOverlapIsRefused) {
  on_workers(1, [](const Job& /*job*/) {
    const Step step;
    const std::vector<std::function<torch::Tensor(const torch::Tensor&)>> views{
        [](const torch::Tensor& h) { return h.view({-1}); },
        [](const torch::Tensor& h) { return h.narrow(0, 1, 2); },
        [](const torch::Tensor& h) { return h.narrow(1, 0, 3); },
        [](const torch::Tensor& h) { return h.t(); },
        [](const torch::Tensor& h) {
          return h.unsqueeze(0).expand({2, 4, 6});
        },
    };
    for (std::size_t v = 0; v < views.size(); ++v) {
      SCOPED_TRACE(v);
      const Call segment = [&, v](const TensorList& in) {
        const auto h = in[0].mm(step.weight);
        return TensorList{h, in[0] * 2, views[v](h)};
      };
      step.expect_the_plain_run(segment, all_of);
      step.expect_the_plain_run(segment, after_a_change_of(1));  // which has memory of its own
      for (const std::size_t r : {0, 2}) {
        if (v + 1 == views.size() && r == 2) continue;  // libtorch itself refuses that
        EXPECT_THAT(
            step.refusal(segment, after_a_change_of(r)),
            AllOf(HasSubstr("recompute \"block\": result 0 shares memory with result 2, and "
                            "one of them was changed in place since"),
                  HasSubstr("let it return a clone()")));
      }
      const Call cloned = [&, v](const TensorList& in) {
        auto all = segment(in);
        all.back() = all.back().clone();
        return all;
      };
      for (const std::size_t r : {0, 2}) step.expect_the_plain_run(cloned, after_a_change_of(r));
    }
  });
}

// promise: recompute.h#recompute
TEST(RecomputeMemory, PiecesOfOneTensorThatDoNotOverlapMayBeChangedInPlace) {
  on_workers(1, [](const Job& /*job*/) {
    const Step step;
    for (const std::int64_t dimension : {0, 1}) {
      const Call halves = [&](const TensorList& in) {
        const auto h = in[0].mm(step.weight);
        const auto half = h.size(dimension) / 2;
        return TensorList{h.narrow(dimension, 0, half), h.narrow(dimension, half, half)};
      };
      for (const std::size_t r : {0, 1}) step.expect_the_plain_run(halves, after_a_change_of(r));
    }
  });
}

TEST(RecomputeMemory, OverlapIsThatOfBytes) {
  const auto bytes_of = [](const torch::Tensor& tensor) {
    std::vector<const char*> all;
    std::vector<std::int64_t> at(static_cast<std::size_t>(tensor.dim()), 0);
    for (std::int64_t i = 0; i < tensor.numel(); ++i) {
      auto rest = i;
      const auto* byte = static_cast<const char*>(tensor.const_data_ptr());
      for (std::int64_t d = tensor.dim() - 1; d >= 0; --d) {
        byte += rest % tensor.size(d) * tensor.stride(d) * tensor.element_size();
        rest /= tensor.size(d);
      }
      for (std::int64_t b = 0; b < tensor.element_size(); ++b) all.push_back(byte + b);
    }
    return all;
  };
  torch::manual_seed(6);
  const auto memory = torch::zeros({64});
  const auto drawn = [](std::int64_t most) {
    return torch::randint(most + 1, {1}).item<std::int64_t>();
  };
  const auto piece = [&] {
    const std::array<std::int64_t, 2> sizes{drawn(4), drawn(4)};
    const std::array<std::int64_t, 2> strides{drawn(9), drawn(3)};
    const auto of = memory.as_strided(sizes, strides, drawn(20));
    return drawn(1) == 0 && of.stride(1) == 1 ? of.view(torch::kInt16) : of;
  };
  std::array<int, 2> seen{};
  for (int i = 0; i < 1000; ++i) {
    const auto one = piece();
    const auto other = piece();
    const auto bytes = bytes_of(one);
    const bool expected = std::ranges::any_of(bytes_of(other), [&](const char* byte) {
      return std::ranges::find(bytes, byte) != bytes.end();
    });
    EXPECT_EQ(overlap(one, other), expected) << i;
    ++seen[expected ? 1 : 0];
  }
  EXPECT_GT(std::ranges::min(seen), 100);
  EXPECT_FALSE(overlap(memory, torch::zeros({64})));
}

TEST(RecomputeMemory, ResultsWithoutAGradientStayViewsOfOneAnother) {
  on_workers(1, [](const Job& /*job*/) {
    const Step step;
    step.expect_the_plain_run(
        [](const TensorList& in) {
          const auto mask = in[0].detach().gt(0).to(torch::kFloat);
          return TensorList{mask, mask.view({-1}), in[0].tanh()};
        },
        [&](const torch::Tensor& /*input*/, const TensorList& results) {
          torch::Tensor(results.at(0)).mul_(step.weight.sum());
          return results;
        });
  });
}

// promise: recompute.h#recompute
TEST(RecomputeMemory, AValueBesideItsTensorMayBeChangedInPlace) {
  on_workers(1, [](const Job& /*job*/) {
    const Step step;
    const Call segment = [&](const TensorList& in) {
      const auto h = in[0].mm(step.weight);
      return TensorList{h + 1, h.detach(), h};
    };
    step.expect_the_plain_run(segment, after_a_change_of(1));
    step.expect_the_plain_run(segment, after_a_change_of(2));
  });
}

// promise: recompute.h#recompute
TEST(RecomputeMemory, AChangeInPlaceOfAResultThatIsAnInputIsRefused) {
  on_workers(1, [](const Job& /*job*/) {
    const Step step;
    for (const bool whole : {true, false}) {
      const Call segment = [&](const TensorList& in) {
        return TensorList{in[0] + step.weight.sum(), whole ? in[0] : in[0].narrow(0, 1, 2)};
      };
      step.expect_the_plain_run(segment, all_of);
      EXPECT_THAT(
          step.refusal(segment, after_a_change_of(1)),
          AllOf(HasSubstr("recompute \"block\": result 1 shares memory with input 0, and one "
                          "of them was changed in place since, so that the segment cannot "
                          "run again"),
                HasSubstr("let it return a clone()")));
      step.expect_the_plain_run(
          [&](const TensorList& in) {
            auto all = segment(in);
            all.back() = all.back().clone();
            return all;
          },
          after_a_change_of(1));
    }
  });
}

TEST(RecomputeMemory, ALeafThatIsReturnedIsTheLeaf) {
  on_workers(1, [](const Job& /*job*/) {
    const Step step;
    const Call segment = [&](const TensorList& in) {
      const auto own = torch::ones({6}).requires_grad_();
      return TensorList{step.weight, in[0].mm(step.weight), own};
    };
    step.expect_the_plain_run(segment, all_of);
    const auto results = recompute_list({}, segment, {step.start});
    EXPECT_TRUE(results.at(0).is_same(step.weight));
    (results.at(1).sum() + results.at(2).square().sum()).backward();
    EXPECT_TRUE(results.at(2).grad().equal(torch::full({6}, 2.0)));
  });
}

// promise: recompute.h#recompute
TEST(RecomputeMemory, ALeafThatTheSegmentMakesIsNoParameter) {
  on_workers(1, [](const Job& /*job*/) {
    const Step step;
    const auto with_leaf = [&](const TensorList& in) {
      const auto own = torch::randn({6}).requires_grad_();
      return TensorList{in[0].mm(step.weight) * own};
    };
    step.expect_the_plain_run(with_leaf, all_of);
    step.expect_the_plain_run(with_leaf, after_a_change_of(0));
    // Nor are those of a module, or of a segment within the segment.
    step.expect_the_plain_run(
        [&](const TensorList& in) {
          torch::nn::Linear made(6, 6);
          return TensorList{made->forward(in[0].mm(step.weight))};
        },
        all_of);
    for (const bool again : {false, true}) {
      step.expect_the_plain_run(
          [&](const TensorList& in) {
            const auto own = torch::randn({4, 6}).requires_grad_();
            auto inner = again ? recompute_list({}, with_leaf, {in[0] * own}) : with_leaf({in[0]});
            return TensorList{inner[0] * own};
          },
          all_of);
    }
  });
}

// promise: recompute.h#recompute
TEST(RecomputeMemory, AGradientPenaltyIsASegment) {
  on_workers(1, [](const Job& /*job*/) {
    const Step step;
    for (const bool of_the_input : {false, true}) {
      step.expect_the_plain_run(
          [&](const TensorList& in) {
            const auto z = of_the_input ? in[0] : in[0].detach().requires_grad_();
            const auto norm = z.mm(step.weight).tanh().square().sum();
            const auto slope = torch::autograd::grad({norm}, {z}, {}, true, /*create_graph=*/true);
            return TensorList{slope[0].square().sum() + in[0]};
          },
          all_of);
    }
  });
}

// promise: recompute.h#recompute
TEST(RecomputeMemory, ALeafThatTheSegmentMakesAndKeepsIsRefused) {
  on_workers(1, [](const Job& /*job*/) {
    const Step step;
    TensorList kept;
    EXPECT_THAT(
        step.refusal(
            [&](const TensorList& in) {
              kept.push_back(torch::ones({6}).requires_grad_());
              return TensorList{in[0].mm(step.weight) * kept.back()};
            },
            all_of),
        AllOf(HasSubstr("recompute \"block\": run again, the segment uses other parameters"),
              HasSubstr("or keeps a leaf that needs a gradient and is made inside the "
                        "segment")));
  });
}

}  // namespace
}  // namespace tutti::test::recompute_memory
