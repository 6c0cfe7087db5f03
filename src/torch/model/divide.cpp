#include "torch/model/divide.h"

namespace tutti {

Divisor divisor_of(Divide divide) {
  switch (divide) {
    case Divide::by_weight:
      return Divisor::weights;
    case Divide::by_contributors:
      return Divisor::contributors;
    case Divide::not_at_all:
      return Divisor::none;
  }
  return Divisor::weights;
}

std::string_view name_of(Divide divide) {
  switch (divide) {
    case Divide::by_weight:
      return "by weight";
    case Divide::by_contributors:
      return "by contributors";
    case Divide::not_at_all:
      return "not at all";
  }
  return "";
}

}  // namespace tutti
