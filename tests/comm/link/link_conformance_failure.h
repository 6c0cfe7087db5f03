#pragma once

// The part of the conformance suite in which operations fail. Included after link_conformance.h.

#include "comm/link/link_conformance.h"

namespace tutti::test {

TEST_P(LinkConformance, AnotherSizeIsAnErrorOfTheReceiver) {
  run(2, 2, [](auto& link) {
    const int peer = 1 - link->self();
    Bytes bytes(100);
    std::byte none{};
    PendingOperation unanswered;
    std::vector<PendingOperation> later(2);
    link->receive(0, peer, {&none, 1}, [&, done = unanswered.done()](const LinkError* error) {
      // Nothing can be posted any more, though other lanes may be about to end.
      for (int lane = 0; lane < 2; ++lane) link->send(lane, peer, bytes, later[lane].done());
      done(error);
    });
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
    EXPECT_EQ(failed(*link, unanswered).kind, LinkError::Kind::kLost);
    for (auto& each : later) EXPECT_EQ(failed(*link, each).kind, LinkError::Kind::kLost);
  });
}

TEST_P(LinkConformance, APeerThatLeavesIsLost) {
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
    link->receive(1, 0, std::span(bytes).first(10), open[0].done());
    link->receive(0, 3 - self, std::span(bytes).first(5), open[1].done());
    meet(*link, 0, 0);
    EXPECT_EQ(failed(*link, open[0]).kind, LinkError::Kind::kLost);
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
