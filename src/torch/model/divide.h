#pragma once

// tutti::Divide in the words of the layers below.

#include <string_view>

#include "sync/nodes/node_store.h"
#include "tutti/divide.h"

namespace tutti {

Divisor divisor_of(Divide divide);
/// "by weight", "by contributors", "not at all".
std::string_view name_of(Divide divide);

}  // namespace tutti
