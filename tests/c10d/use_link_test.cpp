// A link of the program's own: what use_link() takes, and what is asked of the backends.

#include <cstdlib>
#include <exception>
#include <functional>
#include <string>
#include <vector>

#include <gmock/gmock.h>

#include "comm/link/link_engine.h"
#include "support/text_of.h"
#include "tutti/error.h"
#include "tutti/link.h"

namespace tutti::test {
namespace {

using Backends = std::vector<c10::intrusive_ptr<c10d::Backend>>;

Backends none(const LinkPlace&) { return {}; }

/// The rank and the size alone.
class Placed final : public c10d::Backend {
 public:
  using Backend::Backend;
  const std::string getBackendName() const override { return "placed"; }
};

c10::intrusive_ptr<c10d::Backend> backend(int rank, int size) {
  return c10::make_intrusive<Placed>(rank, size);
}

class UseLink : public ::testing::Test {
 protected:
  void TearDown() override {
    ::unsetenv("TUTTI_LINK");
    set_link_engine({});
  }
  /// What comes of making a link over what `make` gives.
  static std::string made_of(const MakeBackends& make) {
    use_link("own", make);
    return text_of([] {
      link_engine().make({.name = "link 1", .self = 1, .peers = 2, .lanes = 3, .exchange = {}});
    });
  }
};

// promise: link.h#use_link
TEST_F(UseLink, IsCalledWithANameAndAFunctionBeforeLinksAreMade) {
  for (const char* const name : {"", "auto", "gloo", "mpi", "tcp"}) {
    EXPECT_EQ(text_of([&] { use_link(name, none); }),
              "use_link(\"" + std::string(name) +
                  "\"): must be a name of the program's own, and none of auto, gloo, mpi, tcp");
  }
  EXPECT_EQ(text_of([] { use_link("own", {}); }), "use_link(\"own\"): no function is given");
  for (const std::string asked : {"gloo", "mpi", "tcp"}) {
    ::setenv("TUTTI_LINK", asked.c_str(), 1);
    EXPECT_EQ(text_of([] { use_link("own", none); }),
              "use_link(\"own\"): TUTTI_LINK is " + asked +
                  ", which asks for another link; leave it at auto");
  }
  ::setenv("TUTTI_LINK", "auto", 1);
  use_link("own", none);
  use_link("another", none);
  EXPECT_EQ(link_engine().name, "another");
  EXPECT_EQ(link_engine().reason, "the program has called use_link()");
}

// promise: link.h#host, link.h#name, link.h#use_link
TEST_F(UseLink, MakesAsManyBackendsAsThereAreLanesOfTheRightRank) {
  LinkPlace place;
  EXPECT_EQ(made_of([&](const LinkPlace& asked) {
              place = asked;
              return Backends{backend(1, 2)};
            }),
            "the link \"own\" needs a backend for each of its 3 lanes, and has 1");
  EXPECT_EQ(place.name, "link 1");
  EXPECT_EQ(place.host, 1);
  EXPECT_EQ(place.hosts, 2);
  EXPECT_EQ(place.lanes, 3);
  EXPECT_EQ(made_of([](const LinkPlace&) {
              return Backends{backend(1, 2), nullptr, backend(1, 2)};
            }),
            "a backend of the link \"own\" is null");
  EXPECT_EQ(made_of([](const LinkPlace&) {
              return Backends{backend(1, 2), backend(0, 2), backend(1, 2)};
            }),
            "a backend of the link \"own\" has rank 0 of 2, and has to have rank 1 of 2");
  EXPECT_EQ(made_of([](const LinkPlace&) { return Backends(3, backend(1, 4)); }),
            "a backend of the link \"own\" has rank 1 of 4, and has to have rank 1 of 2");
}

/// The last of this program: what is used stays so.
// promise: link.h#use_link
TEST_F(UseLink, IsRefusedOnceLinksAreMade) {
  EXPECT_FALSE(link_engine_is_used());
  note_link_engine_is_used();
  EXPECT_EQ(text_of([] { use_link("own", none); }),
            "use_link(\"own\"): links between hosts are made already: call it before the first "
            "Trainer or DataParallel");
}

}  // namespace
}  // namespace tutti::test
