#pragma once

// The part of the conformance suite in which operations fail. Included after link_conformance.h.

#include "comm/link/link_conformance.h"

namespace tutti::test {

TEST_P(LinkConformance, AnotherSizeIsAnErrorOfTheReceiver) {
  run(2, 2, [](auto& link) {
    Losses losses;
    link->on_lost(losses.handler());
    const int peer = 1 - link->self();
    Bytes bytes(100);
    PendingOperation operation;
    if (link->self() == 0) {
      link->send(1, peer, std::span(bytes).first(64), operation.done());
      // Few bytes may have left before the receiver sees how many they are.
      ASSERT_TRUE(operation.wait(*link, soon()));
      const auto* error = operation.error();
      EXPECT_TRUE(error == nullptr || error->kind == LinkError::Kind::kLost);
    } else {
      link->receive(1, peer, bytes, operation.done());
      const auto error = failed(*link, operation);
      EXPECT_EQ(error.kind, LinkError::Kind::kMismatch);
      EXPECT_EQ(error.peer, 0);
      EXPECT_THAT(error.text, AllOf(HasSubstr("64 bytes"), HasSubstr("100"), HasSubstr("lane 1")));
    }
    EXPECT_TRUE(comes(*link, [&] { return !losses.so_far().empty(); }));
    PendingOperation later;
    link->send(0, peer, bytes, later.done());
    EXPECT_EQ(failed(*link, later).kind, LinkError::Kind::kLost);
    EXPECT_THAT(losses.so_far(), ElementsAre(peer));
    link->on_lost({});
  });
}

TEST_P(LinkConformance, WhatIsPostedToAPeerFailsOnceItsLossIsTold) {
  run(2, 2, [](auto& link) {
    const int peer = 1 - link->self();
    Bytes bytes(100);
    std::vector<PendingOperation> later(2);
    std::atomic<bool> is_told{false};
    link->on_lost([&](int lost, const std::string&) {
      EXPECT_EQ(lost, peer);
      for (int lane = 0; lane < 2; ++lane) link->send(lane, lost, bytes, later[lane].done());
      is_told = true;
    });
    PendingOperation operation;
    if (link->self() == 0) {
      link->send(1, peer, std::span(bytes).first(64), operation.done());
    } else {
      link->receive(1, peer, bytes, operation.done());
    }
    ASSERT_TRUE(operation.wait(*link, soon()));
    ASSERT_TRUE(comes(*link, [&] { return is_told.load(); }));
    for (auto& each : later) EXPECT_EQ(failed(*link, each).kind, LinkError::Kind::kLost);
    link->on_lost({});
  });
}

TEST_P(LinkConformance, APeerThatLeavesIsLostOnce) {
  run(3, 2, [](auto& link) {
    const int self = link->self();
    Bytes bytes(1000);
    std::vector<PendingOperation> open(3);
    if (self == 0) {
      meet(*link, 0, 1);
      meet(*link, 0, 2);
      link.reset();
      return;
    }
    Losses losses;
    link->on_lost(losses.handler());
    link->receive(1, 0, std::span(bytes).first(10), open[0].done());
    link->receive(0, 3 - self, std::span(bytes).first(5), open[1].done());
    meet(*link, 0, 0);
    EXPECT_EQ(failed(*link, open[0]).kind, LinkError::Kind::kLost);
    EXPECT_TRUE(comes(*link, [&] { return !losses.so_far().empty(); }));
    for (int lane = 0; lane < 2; ++lane) {
      PendingOperation later;
      link->receive(lane, 0, std::span(bytes).subspan(100, 10), later.done());
      const auto error = failed(*link, later);
      EXPECT_EQ(error.kind, LinkError::Kind::kLost);
      EXPECT_EQ(error.peer, 0);
      EXPECT_THAT(error.text, Not(IsEmpty()));
    }
    // The others are not concerned.
    link->send(0, 3 - self, std::span(bytes).subspan(200, 5), open[2].done());
    EXPECT_TRUE(open[2].wait(*link, soon()) && open[2].error() == nullptr);
    EXPECT_TRUE(open[1].wait(*link, soon()) && open[1].error() == nullptr);
    EXPECT_THAT(losses.so_far(), ElementsAre(0));
    link->on_lost({});
    Losses again;
    link->on_lost(again.handler());
    EXPECT_THAT(again.so_far(), IsEmpty());
    link->on_lost({});
  });
}

TEST_P(LinkConformance, APeerThatWasLostBeforeTheHandlerCameIsTold) {
  run(2, 1, [](auto& link) {
    if (link->self() == 1) return;
    link->lose(1, "it does not answer");
    Losses losses;
    link->on_lost(losses.handler());
    EXPECT_THAT(losses.so_far(), ElementsAre(1));
    EXPECT_EQ(losses.text, "it does not answer");
    link->on_lost({});
  });
}

TEST_P(LinkConformance, TheOwnerMayGiveUpAPeer) {
  run(3, 2, [](auto& link) {
    const int self = link->self();
    Bytes bytes(100);
    if (self == 1) {  // silent until the others have finished
      meet(*link, 0, 0);
      meet(*link, 0, 2);
      return;
    }
    Losses losses;
    link->on_lost(losses.handler());
    std::vector<PendingOperation> open(4);
    for (int lane = 0; lane < 2; ++lane) {
      link->receive(lane, self == 0 ? 2 : 0, std::span(bytes).subspan(50 + lane, 1),
                    open[2 + lane].done());
    }
    meet(*link, 0, 1);
    for (int lane = 0; lane < 2; ++lane) {
      link->receive(lane, 1, std::span(bytes).subspan(10 * lane, 10), open[lane].done());
    }
    const auto begin = Clock::now();
    link->lose(1, "its heartbeat has stopped");
    link->lose(1, "once more");
    for (int lane = 0; lane < 2; ++lane) {
      const auto error = failed(*link, open[lane]);
      EXPECT_EQ(error.kind, LinkError::Kind::kLost);
      EXPECT_EQ(error.peer, 1);
      EXPECT_EQ(error.text, "its heartbeat has stopped");
    }
    // 100 ms are promised; the machine that runs the tests may be busy.
    EXPECT_LT(Clock::now() - begin, std::chrono::seconds(5));
    PendingOperation later;
    link->send(0, 1, bytes, later.done());
    EXPECT_EQ(failed(*link, later).kind, LinkError::Kind::kLost);
    for (int lane = 0; lane < 2; ++lane) {
      PendingOperation sent;
      link->send(lane, self == 0 ? 2 : 0, std::span(bytes).first(1), sent.done());
      for (auto* operation : {&sent, &open[2 + lane]}) {
        EXPECT_TRUE(operation->wait(*link, soon()) && operation->error() == nullptr);
      }
    }
    EXPECT_THAT(losses.so_far(), ElementsAre(1));
    link->on_lost({});
  });
}

TEST_P(LinkConformance, OpenOperationsEndWithTheLink) {
  run(2, 2, [](auto& link) {
    const int peer = 1 - link->self();
    std::atomic<int> ended{0};
    std::atomic<int> closed{0};
    std::atomic<int> sent{0};
    Bytes bytes(200);
    meet(*link, 0, peer);
    if (link->self() == 0) {
      const auto done = [&](const LinkError* error) {
        ++ended;
        if (error != nullptr && error->kind == LinkError::Kind::kClosed) ++closed;
        if (error == nullptr) ++sent;
      };
      for (int i = 0; i < 20; ++i) link->receive(i % 2, peer, std::span(bytes).first(100), done);
      for (int i = 0; i < 20; ++i) link->send(i % 2, peer, std::span(bytes).last(100), done);
      link.reset();
      EXPECT_EQ(ended, 40);
      // Sends of few bytes may have left before.
      EXPECT_EQ(closed + sent, 40);
      EXPECT_GE(closed, 20);
    }
  });
}

}  // namespace tutti::test
