#pragma once

// `tutti export --torch`: a checkpoint's model as an archive that torch::load and torch.jit.load
// open. libtorch is needed for it, so the program tutti-export-torch, which lies beside this one,
// takes over.

#include <string>

namespace tutti::command {

/// Does not return. Refusal where the program is missing.
[[noreturn]] void export_torch(const std::string& checkpoint, const std::string& file,
                               bool averages);

}  // namespace tutti::command
