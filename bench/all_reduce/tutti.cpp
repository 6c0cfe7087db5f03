// Tutti's all_reduce over spans, without libtorch. Way "arena": in memory from Group::allocate.
// Way "staged": in memory that the group does not know.

#include "tutti/group.h"

#include <vector>

#include "all_reduce/serve.h"

int main(int count, char** arguments) {
  if (count != 3) bench::fail("usage: tutti run -n N bench_all_reduce_tutti SOCKET LARGEST_BYTES");
  const auto job = tutti::Job::join();
  const tutti::Group group(job);
  const auto arena = group.allocate(std::stoull(arguments[2]), "benchmark");
  std::vector<float> plain;
  bench::serve(arguments[1], group.rank(), group.size(),
               [&](const std::string& way, std::int64_t n) {
                 auto* data = reinterpret_cast<float*>(arena.data());
                 if (way == "staged") {
                   if (plain.size() < static_cast<std::size_t>(n)) plain.resize(n);
                   data = plain.data();
                 }
                 const tutti::View view{data, n, tutti::DType::float32};
                 return bench::Operation{
                     data, [&group, view] { group.all_reduce(view, tutti::Reduction::sum); }};
               });
}
