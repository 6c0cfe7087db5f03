#include "job/hosts/interfaces.h"

#include <gmock/gmock.h>

#include "support/text_of.h"

namespace tutti::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

TEST(Interfaces, HaveAnAddressAndAnUnknownOneIsRefusedWithThoseThatThereAre) {
  EXPECT_EQ(address_of_interface("lo"), "127.0.0.1");
  EXPECT_THAT(interfaces_text(), HasSubstr("lo 127.0.0.1"));
  EXPECT_THAT(text_of([] { address_of_interface("eth77"); }),
              AllOf(StartsWith("there is no interface \"eth77\" with an address that is up; there "
                               "are: "),
                    HasSubstr("lo 127.0.0.1")));
}

}  // namespace
}  // namespace tutti::test
