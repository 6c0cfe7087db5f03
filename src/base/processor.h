#pragma once

// The processor that this process runs on, as /proc/cpuinfo describes it.
//
// Threads: pure functions, and one that reads a file. Failure: what the system does not tell is
// empty.

#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <string_view>

namespace tutti {

enum class Architecture : std::uint8_t { x86_64, aarch64 };

/// What this program was compiled for.
#if defined(__aarch64__)
inline constexpr Architecture kArchitecture = Architecture::aarch64;
#else
inline constexpr Architecture kArchitecture = Architecture::x86_64;
#endif

/// "x86_64", "aarch64".
std::string_view name_of(Architecture architecture) noexcept;

struct Processor {
  std::string vendor = {};                        ///< "AuthenticAMD"
  std::string family = {};                        ///< "25"
  std::string model = {};                         ///< "17"
  std::string name = {};                          ///< "AMD EPYC 9554 64-Core Processor"; ARM: ""
  std::set<std::string, std::less<>> flags = {};  ///< "avx2", …
};

/// The first processor of a text such as /proc/cpuinfo; x86 and ARM name its lines differently.
Processor parse_processor(std::string_view cpuinfo);
/// Reads what this machine says of its first processor. One with SVE has a flag more, which no file
/// tells: the bits of the vectors that this process has, "sve256".
Processor read_processor();

/// "AuthenticAMD family 25 model 17": processors of one type have the same instructions, except
/// where a virtual machine hides some.
std::string type_of(const Processor& processor);
/// "AMD EPYC 9554 (AuthenticAMD family 25 model 17)"; the type alone where there is no name.
std::string description_of(const Processor& processor);
/// The flags by which libtorch, oneDNN and MKL choose kernels: "fma avx2 avx512f"; "none".
std::string extensions_of(const Processor& processor);

}  // namespace tutti
