#include <gmock/gmock.h>

#include "comm/collective_cases.h"
#include "comm/local/call_record.h"
#include "tutti/error.h"

namespace tutti::test {
namespace {

using ::testing::HasSubstr;

using Call = std::function<void(const Group&)>;

/// Runs one call on rank 0 and another on all others, of `ranks`; every rank must get the same
/// Mismatch, now and later, and a fresh group must work. Returns its text.
std::string mismatch_of(const Call& first, const Call& rest, int ranks = 2) {
  std::vector<std::string> texts(static_cast<std::size_t>(ranks));
  run_thread_ranks(ranks, [&](Job job) {
    const Group group(job);
    auto& text = texts[static_cast<std::size_t>(job.rank())];
    group.barrier();
    try {
      (job.rank() == 0 ? first : rest)(group);
      ADD_FAILURE() << "rank " << job.rank() << " noticed nothing";
    } catch (const Mismatch& e) {
      text = e.what();
    }
    try {
      group.barrier();
      ADD_FAILURE() << "the group goes on";
    } catch (const Mismatch& e) {
      EXPECT_EQ(text, e.what());
    }
    const Group fresh(job, "fresh");
    int one = 1;
    fresh.all_reduce(view(&one, 1), Reduction::sum);
    EXPECT_EQ(one, ranks);
  });
  for (const std::string& text : texts) EXPECT_EQ(text, texts[0]);
  return texts[0];
}

Call all_reduce(std::int64_t count, const char* label, Reduction reduction = Reduction::sum) {
  return [=](const Group& group) {
    Values<float> x(count);
    group.all_reduce(view(x), reduction, {.label = label});
  };
}

// promise: error.h#Mismatch, group.h#Group, group.h#label
TEST(Mismatch, KindNamesBothCalls) {
  const auto broadcast = [](const Group& group) {
    Values<double> x(7);
    group.broadcast(view(x), 1, {.label = "bias"});
  };
  EXPECT_EQ(mismatch_of(all_reduce(100, "weight"), broadcast),
            "members of group \"world\" disagree in call 2: rank 0: all-reduce sum float32[100] "
            "\"weight\"; rank 1: broadcast float64[7] from rank 1 \"bias\"");
}

// promise: group#when-something-is-wrong
TEST(Mismatch, RanksWithTheSameCallAreListedOnce) {
  EXPECT_EQ(mismatch_of(all_reduce(1, "a"), all_reduce(1, "b"), 4),
            "members of group \"world\" disagree in call 2: rank 0: all-reduce sum float32[1] "
            "\"a\"; ranks 1 2 3: all-reduce sum float32[1] \"b\"");
}

// promise: group.h#label
TEST(Mismatch, Label) {
  const std::string text = mismatch_of(all_reduce(3, "encoder.weight"), all_reduce(3, ""));
  EXPECT_THAT(text, HasSubstr("rank 0: all-reduce sum float32[3] \"encoder.weight\";"));
  EXPECT_THAT(text, HasSubstr("rank 1: all-reduce sum float32[3]"));
}

TEST(Mismatch, Reduction) {
  const std::string text =
      mismatch_of(all_reduce(3, "x", Reduction::max), all_reduce(3, "x", Reduction::mean));
  EXPECT_THAT(text, HasSubstr("rank 0: all-reduce max float32[3]"));
  EXPECT_THAT(text, HasSubstr("rank 1: all-reduce mean float32[3]"));
}

TEST(Mismatch, CountWithinAndAcrossTheTwoWays) {
  EXPECT_THAT(mismatch_of(all_reduce(3, "x"), all_reduce(4, "x")),
              HasSubstr("rank 0: all-reduce sum float32[3] \"x\"; rank 1: all-reduce sum "
                        "float32[4] \"x\""));
  EXPECT_THAT(mismatch_of(all_reduce(0, "x"), all_reduce(1'000'000, "x")),
              HasSubstr("float32[0] \"x\"; rank 1: all-reduce sum float32[1000000]"));
  EXPECT_THAT(mismatch_of(all_reduce(1'000'000, "x"), all_reduce(1'000'001, "x")),
              HasSubstr("float32[1000001]"));
}

TEST(Mismatch, DType) {
  const auto integers = [](const Group& group) {
    Values<std::int32_t> x(3);
    group.all_reduce(view(x), Reduction::sum, {.label = "x"});
  };
  const std::string text = mismatch_of(all_reduce(3, "x"), integers);
  EXPECT_THAT(text, HasSubstr("rank 0: all-reduce sum float32[3]"));
  EXPECT_THAT(text, HasSubstr("rank 1: all-reduce sum int32[3]"));
}

TEST(Mismatch, Root) {
  const auto from = [](int root) {
    return [root](const Group& group) {
      Values<float> x(3);
      group.broadcast(view(x), root);
    };
  };
  EXPECT_THAT(mismatch_of(from(0), from(1)),
              HasSubstr("rank 0: broadcast float32[3] from rank 0; rank 1: broadcast float32[3] "
                        "from rank 1"));
  const auto to = [](int root) {
    return [root](const Group& group) {
      Values<float> x(3);
      group.reduce(view(x), view(x), Reduction::sum, root);
    };
  };
  EXPECT_THAT(mismatch_of(to(1), to(0)), HasSubstr("rank 0: reduce sum float32[3] to rank 1"));
}

// promise: group#parts-of-unequal-sizes, group.h#all_gather_variable
TEST(Mismatch, CountsOfAVariableGather) {
  const auto gather = [](std::vector<std::int64_t> counts) {
    return [counts](const Group& group) {
      Values<float> in(counts[static_cast<std::size_t>(group.rank())]);
      Values<float> out(counts[0] + counts[1]);
      group.all_gather_variable(view(in), view(out), counts);
    };
  };
  EXPECT_THAT(mismatch_of(gather({1, 3}), gather({2, 2})),
              HasSubstr("rank 0: all-gather float32[4] as 1+3; rank 1: all-gather float32[4] as "
                        "2+2"));
}

TEST(Mismatch, OneCallTooFewMeetsTheNext) {
  const auto extra = [](const Group& group) {
    all_reduce(5, "step 1")(group);
    group.barrier();
  };
  EXPECT_THAT(mismatch_of(all_reduce(5, "step 2"), extra),
              HasSubstr("rank 0: all-reduce sum float32[5] \"step 2\"; rank 1: all-reduce sum "
                        "float32[5] \"step 1\""));
}

// promise: group#when-something-is-wrong
TEST(Mismatch, StartedCallsAreCompared) {
  const auto two = [](const char* first, const char* second) {
    return [=](const Group& group) {
      float x = 0, y = 0;
      Work a = group.start().all_reduce(view(&x, 1), view(&x, 1), Reduction::sum, {.label = first});
      Work b =
          group.start().all_reduce(view(&y, 1), view(&y, 1), Reduction::sum, {.label = second});
      b.wait();
    };
  };
  EXPECT_THAT(mismatch_of(two("a", "b"), two("b", "a")), HasSubstr("disagree in call 2"));
}

TEST(Mismatch, AWorkerThatWaitsInAnotherGroupIsFoundOut) {
  run_thread_ranks(2, [](Job job) {
    const Group a(job, "a");
    const Group b(job, "b");
    try {
      (job.rank() == 0 ? a : b).barrier();
      ADD_FAILURE() << "no deadlock was found";
    } catch (const Mismatch& e) {
      EXPECT_THAT(e.what(), HasSubstr("group \"a\""));
      EXPECT_THAT(e.what(), HasSubstr("group \"b\""));
    }
  });
}

/// The negative control of the tests above: what the comparison sees is the hash alone, and it must
/// tell every field.
// promise: group#when-something-is-wrong, group.h#Group, group.h#label
TEST(Mismatch, EveryFieldChangesTheHashAndPlacesDoNot) {
  float data[64] = {};
  Operation base;
  base.kind = OperationKind::all_reduce;
  base.in = {data, 8, DType::float32};
  base.out = {data, 8, DType::float32};
  base.label = "x";
  const auto hash = [](const Operation& operation) {
    CallRecord record{};
    return write_record(record, operation);
  };
  const auto changed = [&](auto&& change) {
    Operation other = base;
    change(other);
    return hash(other) != hash(base);
  };
  EXPECT_TRUE(changed([](Operation& o) { o.kind = OperationKind::broadcast; }));
  EXPECT_TRUE(changed([](Operation& o) { o.reduction = Reduction::max; }));
  EXPECT_TRUE(changed([](Operation& o) { o.in.dtype = DType::int32; }));
  EXPECT_TRUE(changed([](Operation& o) { o.in.count = 9; }));
  EXPECT_TRUE(changed([](Operation& o) { o.root = 1; }));
  EXPECT_TRUE(changed([](Operation& o) { o.label = "y"; }));
  EXPECT_TRUE(changed([](Operation& o) { o.label = ""; }));
  const std::int64_t counts[] = {4, 4};
  EXPECT_TRUE(changed([&](Operation& o) {
    o.is_variable = true;
    o.counts = counts;
  }));
  EXPECT_FALSE(changed([&](Operation& o) { o.in.data = data + 16; }));
  EXPECT_FALSE(changed([&](Operation& o) { o.deadline = std::chrono::seconds(1); }));
  const std::string long_label(80, 'a');
  CallRecord record{};
  base.label = long_label;
  write_record(record, base);
  EXPECT_EQ(record.label_text(), std::string(63, 'a'));
}

}  // namespace
}  // namespace tutti::test
