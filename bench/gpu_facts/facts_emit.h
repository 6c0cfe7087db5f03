// One JSON line per fact on stdout: {"part","key","value"[,"unit"]}.
#pragma once
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <string>
#include <vector>

inline std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < 32) {
      out += ' ';
    } else {
      out += c;
    }
  }
  return out + '"';
}
inline void emit(const std::string& part, const std::string& key, double value,
                 const std::string& unit = "") {
  char number[64] = "null";
  if (std::isfinite(value)) std::snprintf(number, sizeof number, "%.9g", value);
  std::printf("{\"part\":%s,\"key\":%s,\"value\":%s,\"unit\":%s}\n", quoted(part).c_str(),
              quoted(key).c_str(), number, quoted(unit).c_str());
  std::fflush(stdout);
}
inline void note(const std::string& part, const std::string& key, const std::string& text) {
  std::printf("{\"part\":%s,\"key\":%s,\"value\":%s}\n", quoted(part).c_str(), quoted(key).c_str(),
              quoted(text).c_str());
  std::fflush(stdout);
}
inline double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}
inline double median(std::vector<double> all) {
  if (all.empty()) return std::nan("");
  std::sort(all.begin(), all.end());
  return all[all.size() / 2];
}
inline double quantile(std::vector<double> all, double q) {
  if (all.empty()) return std::nan("");
  std::sort(all.begin(), all.end());
  return all[std::min(all.size() - 1,
                      static_cast<std::size_t>(q * static_cast<double>(all.size())))];
}
/// Median seconds of `times` calls after one unmeasured.
template <class Work>
double seconds_of(int times, const Work& work) {
  work();
  std::vector<double> all;
  for (int k = 0; k < times; ++k) {
    const double begin = now();
    work();
    all.push_back(now() - begin);
  }
  return median(all);
}
