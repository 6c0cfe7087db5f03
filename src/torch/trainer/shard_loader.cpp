#include "tutti/shard_loader.h"

#include "base/helper_thread.h"

namespace tutti::detail {

void mark_reader_thread() { mark_helper_thread(); }

}  // namespace tutti::detail
