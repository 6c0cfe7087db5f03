#pragma once

// The processor that this process runs on, as /proc/cpuinfo describes it.
//
// Threads: pure functions, and one that reads a file. Failure: what the system does not tell is
// empty.

#include <functional>
#include <set>
#include <string>
#include <string_view>

namespace tutti {

struct Processor {
  std::string vendor = {};                        ///< "AuthenticAMD"
  std::string family = {};                        ///< "25"
  std::string model = {};                         ///< "17"
  std::string name = {};                          ///< "AMD EPYC 9554 64-Core Processor"
  std::set<std::string, std::less<>> flags = {};  ///< "avx2", …
};

/// The first processor of a text such as /proc/cpuinfo; x86 and ARM name its lines differently.
Processor parse_processor(std::string_view cpuinfo);
/// Reads what this machine says of its first processor.
Processor read_processor();

/// "AuthenticAMD family 25 model 17": processors of one type have the same instructions, except
/// where a virtual machine hides some.
std::string type_of(const Processor& processor);
/// The flags by which libtorch, oneDNN and MKL choose kernels: "fma avx2 avx512f"; "none".
std::string extensions_of(const Processor& processor);

}  // namespace tutti
