// DataParallel with parameters that one worker alone updates: the run of a single process.

#include "support/debug_log.h"
#include "support/log_capture.h"
#include "torch/training.h"

namespace tutti::test::send_owned_cases {
namespace {

using ::testing::HasSubstr;

/// A table with few rows looked up, and what is made of them.
struct LookUpImpl : torch::nn::Module {
  LookUpImpl() {
    table = register_module("table",
                            torch::nn::Embedding(torch::nn::EmbeddingOptions(50, 4).sparse(true)));
    output = register_module("output", torch::nn::Linear(4, 1));
  }
  torch::Tensor loss(std::int64_t step, std::int64_t begin, std::int64_t end) {
    const auto words = (torch::arange(begin, end) * 7 + step * 3) % 20;
    return output(table(words)).pow(2).mean();
  }
  torch::nn::Embedding table{nullptr};
  torch::nn::Linear output{nullptr};
};
TORCH_MODULE(LookUp);

std::optional<std::int64_t> owner_of(const std::string& name) {
  if (name == "table.weight") return 1;
  if (name == "output.weight") return 0;
  return {};
}

// promise: data_parallel.h#placement
TEST(BroadcastPlaced, IsTheRunOfASingleProcessWithAndWithoutACodec) {
  for (const bool coded : {false, true}) {
    on_workers(3, [&](const Job& job) {
      torch::manual_seed(1);
      LookUp model;
      DataParallel parallel(job, *model,
                            {.compression = {.codec = coded ? half_codec() : nullptr},
                             .desync_check_every = 1,
                             .placement = owner_of});
      LookUp alone;
      for (std::size_t p = 0; p < 3; ++p) {
        const torch::NoGradGuard no_grad;
        alone->parameters()[p].copy_(model->parameters()[p]);
      }
      torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.1));
      torch::optim::SGD optimizer_alone(alone->parameters(), torch::optim::SGDOptions(0.1));
      for (std::int64_t step = 1; step <= 4; ++step) {
        optimizer.zero_grad();
        const auto [begin, end] = share_of(9, job);
        parallel.next_weight(static_cast<double>(end - begin));
        model->loss(step, begin, end).backward();
        // Only its owner has a gradient.
        EXPECT_EQ(model->table->weight.grad().defined(), job.rank() == 1);
        EXPECT_EQ(model->output->weight.grad().defined(), job.rank() == 0);
        EXPECT_TRUE(model->output->bias.grad().defined());
        optimizer.step();
        parallel.broadcast_placed();
        expect_equal_everywhere(parallel.group(), *model);
        optimizer_alone.zero_grad();
        alone->loss(step, 0, 9).backward();
        optimizer_alone.step();
        expect_close(*model, *alone, coded ? 1e-3 : 2e-6);
      }
    });
  }
}

// promise: data_parallel.h#placement, step_report.h#max_sent_bytes
TEST(BroadcastPlaced, ItsGradientIsLeftAloneByCodecsAndCounted) {
  on_workers(3, [](const Job& job) {
    const auto gradients = [&](const DataParallelOptions& options) {
      torch::manual_seed(1);
      LookUp model;
      DataParallel parallel(job, *model, options);
      const auto [begin, end] = share_of(9, job);
      model->loss(1, begin, end).backward();
      if (options.placement) {
        parallel.broadcast_placed();
        const auto traffic = parallel.traffic();
        std::string all;
        for (const auto& bucket : traffic.all_steps) all += bucket.parameters + " ";
        EXPECT_THAT(all, HasSubstr("output.weight"));
        EXPECT_THAT(all, HasSubstr("table.weight"));
        const auto rows =
            parallel.report().max_sent_bytes - 16 * (options.compression.codec ? 1 : 4);
        EXPECT_LT(rows, 200u);  // the bias and three rows or fewer, besides the padded weight
      }
      std::vector<torch::Tensor> all;
      for (const auto& parameter : model->parameters()) {
        const auto& grad = parameter.grad();
        all.push_back(!grad.defined()    ? torch::Tensor()
                      : grad.is_sparse() ? grad.to_dense()
                                         : grad.clone());
      }
      return all;
    };
    const auto exact = gradients({});
    const Compression rough{.codec = threshold_codec(1e9)};  // sends nothing
    const auto owned = gradients({.compression = rough, .placement = owner_of});
    if (job.rank() == 1) {
      EXPECT_TRUE(torch::equal(owned[0], exact[0]));
    }
    if (job.rank() == 0) {
      EXPECT_TRUE(torch::equal(owned[1], exact[1]));
    }
    EXPECT_EQ(owned[2].abs().max().item<double>(), 0);
  });
}

// promise: data_parallel.h#broadcast_placed
TEST(BroadcastPlaced, AnUpdateThatWasNotSentIsLoggedAtTheEnd) {
  on_workers(1, [](const Job& job) {
    const DebugLog debug;
    LogCapture log;
    for (const bool sends : {true, false}) {
      LookUp model;
      DataParallel parallel(job, *model, {.placement = [](const std::string& name) {
                              return name == "table.weight" ? std::optional<std::int64_t>(0)
                                                            : std::nullopt;
                            }});
      model->loss(1, 0, 3).backward();
      if (sends) parallel.broadcast_placed();
    }
    EXPECT_EQ(log.count("\"table.weight\" has an owner, whose last update was not sent"), 1);
    EXPECT_EQ(log.count("1 parameters with an owner"), 2);
  });
}

TEST(BroadcastPlaced, WhatIsSentIsCountedInTheTraffic) {
  on_workers(3, [](const Job& job) {
    LookUp model;
    DataParallel parallel(job, *model, {.placement = owner_of});
    const auto line_of = [&](const std::vector<BucketTraffic>& lines, const std::string& name) {
      for (const auto& line : lines) {
        if (line.parameters == name + ", sent by its owner") return line;
      }
      ADD_FAILURE() << "no line of " << name;
      return BucketTraffic();
    };
    std::uint64_t table_bytes = 0;
    for (std::uint64_t step = 1; step <= 2; ++step) {
      model->zero_grad();
      model->loss(step, 0, 3).backward();  // alike on all workers
      const auto rows = job.rank() == 1 ? model->table->weight.grad().coalesce().indices().size(1)
                                        : std::int64_t{0};
      EXPECT_EQ(line_of(parallel.traffic().last_step, "table.weight").bytes, 0u) << "not sent yet";
      parallel.broadcast_placed();
      const auto table = line_of(parallel.traffic().last_step, "table.weight");
      const auto width = static_cast<std::uint64_t>(model->table->weight.size(1));
      EXPECT_EQ(table.messages, 1);
      EXPECT_EQ(table.dense_messages, 0);
      if (job.rank() == 1) {
        EXPECT_EQ(table.bytes, 3 * 4 * width * static_cast<std::uint64_t>(rows));
      }
      EXPECT_EQ(table.bytes_dense, 3 * model->table->weight.nbytes());
      const auto output = line_of(parallel.traffic().last_step, "output.weight");
      EXPECT_EQ(output.dense_messages, 1);
      EXPECT_EQ(output.bytes, 3 * model->output->weight.nbytes());
      table_bytes += table.bytes;
    }
    EXPECT_EQ(line_of(parallel.traffic().all_steps, "table.weight").bytes, table_bytes);
    EXPECT_THAT(parallel.traffic().table(), HasSubstr("output.weight, sent by its owner"));
  });
}

// promise: data_parallel.h#broadcast_placed
TEST(BroadcastPlaced, OnlyTouchedRowsTravel) {
  on_workers(2, [](const Job& job) {
    LookUp model;
    DataParallel parallel(job, *model, {.desync_check_every = 0, .placement = owner_of});
    const torch::NoGradGuard no_grad;
    const auto before = model->table->weight.clone();
    {
      const torch::AutoGradMode grad(true);
      model->loss(1, 0, 2).backward();
    }
    if (job.rank() == 1) model->table->weight.add_(1);
    parallel.broadcast_placed();
    const auto change = (model->table->weight - before).mean(1);
    for (std::int64_t row = 0; row < 50; ++row) {
      const bool touched = row == 3 || row == 10;  // (k · 7 + 3) mod 20
      EXPECT_NEAR(change[row].item<double>(), touched || job.rank() == 1 ? 1 : 0, 1e-5) << row;
    }
  });
}

// promise: data_parallel.h#broadcast_placed
TEST(BroadcastPlaced, NothingToSendNeedsNobody) {
  on_workers(2, [](const Job& job) {
    LookUp model;
    auto parallel =
        std::make_unique<DataParallel>(job, *model, DataParallelOptions{.placement = owner_of});
    parallel->synchronize(0);
    if (job.rank() == 0) parallel.reset();
    Group(job, "after").barrier();
    if (job.rank() == 1) parallel->broadcast_placed();
  });
}

// What a dropped step touched is nobody's business.
TEST(BroadcastPlaced, AStepThatIsDroppedLeavesNothingToSend) {
  on_workers(2, [](const Job& job) {
    LookUp model;
    DataParallel parallel(job, *model, {.placement = owner_of});
    if (job.rank() == 1) {
      parallel.fail("of the test");
    } else {
      EXPECT_THAT(text_of<PeerFailed>([&] { model->loss(1, 0, 3).backward(); }),
                  HasSubstr("of the test"));
    }
    model->loss(2, 0, 3).backward();
    parallel.broadcast_placed();
  });
}

// promise: data_parallel.h#broadcast_placed
TEST(BroadcastPlaced, WithoutItTheNextStepIsRefused) {
  on_workers(2, [](const Job& job) {
    LookUp model;
    DataParallel parallel(job, *model, {.placement = owner_of});
    parallel.broadcast_placed();  // nothing was touched
    model->loss(1, 0, 3).backward();
    model->zero_grad();
    EXPECT_THAT(
        text_of([&] { model->loss(2, 0, 3).backward(); }),
        HasSubstr("\"table.weight\" has an owner, whose update in step 1 was not sent: call "
                  "broadcast_placed()"));
    EXPECT_THAT(text_of([&] { parallel.synchronize(0); }), HasSubstr("call broadcast_placed()"));
    parallel.broadcast_placed();
    model->loss(2, 0, 3).backward();
    EXPECT_EQ(parallel.report().step, 2);
    parallel.broadcast_placed();
  });
}

// promise: data_parallel.h#join
TEST(BroadcastPlaced, AWorkerThatHasNoMoreDataSendsWhatItOwns) {
  on_workers(2, [](const Job& job) {
    LookUp model;
    DataParallel parallel(job, *model, {.desync_check_every = 1, .placement = owner_of});
    torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.1));
    const auto update = [&] {
      optimizer.step();
      parallel.broadcast_placed();
      optimizer.zero_grad();
    };
    const std::int64_t steps = job.rank() == 0 ? 3 : 1;
    for (std::int64_t step = 1; step <= steps; ++step) {
      model->loss(step, 0, 4).backward();
      update();
    }
    EXPECT_EQ(parallel.join(update), 3 - steps);
    expect_equal_everywhere(parallel.group(), *model);
  });
}

// promise: data_parallel.h#broadcast_placed, data_parallel.h#placement
TEST(BroadcastPlaced, OwnersThatAreNotThereAreRefused) {
  on_workers(2, [](const Job& job) {
    auto model = mlp();
    const auto refused = [&](std::int64_t rank) {
      return text_of<InvalidArgument>([&] {
        DataParallel parallel(
            job, *model, {.placement = [&](const std::string&) { return std::optional(rank); }});
      });
    };
    EXPECT_THAT(refused(2), HasSubstr("\"0.weight\" is owned by rank 2: there are ranks 0 to 1"));
    if (job.rank() == 1) {
      EXPECT_THAT(refused(2), HasSubstr("owned by rank 2"));  // nobody waits
    }
    DataParallel parallel(job, *model);
    EXPECT_THAT(text_of([&] { parallel.broadcast_placed(); }),
                HasSubstr("no parameter has an owner"));
    EXPECT_THAT(refused(-1), HasSubstr("\"0.weight\" has the owner -1: they count from 0"));
  });
}

}  // namespace
}  // namespace tutti::test::send_owned_cases
