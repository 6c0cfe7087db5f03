// The same through tensors: what the overload for tensors costs on top of spans.

#include "tutti/tensors.h"

#include "all_reduce/serve.h"

int main(int count, char** arguments) {
  if (count != 3) bench::fail("usage: tutti run -n N bench_all_reduce_tensor SOCKET LARGEST_BYTES");
  torch::set_num_threads(1);
  const auto job = tutti::Job::join();
  const tutti::Group group(job);
  const auto all = tutti::shared_zeros(group, {std::stoll(arguments[2]) / 4}, torch::kFloat32);
  bench::serve(arguments[1], group.rank(), group.size(), [&](const std::string&, std::int64_t n) {
    auto part = all.narrow(0, 0, n);
    return bench::Operation{part.data_ptr<float>(), [&group, part]() mutable {
                              tutti::all_reduce(group, part, tutti::Reduction::sum);
                            }};
  });
}
