// Collectives, operations and partial values of complex tensors, beside those of their real
// numbers.

#include "torch/exact_cases.h"
#include "torch/model/real_numbers.h"
#include "torch/training.h"
#include "tutti/ops.h"
#include "tutti/partial.h"
#include "tutti/tensors.h"

namespace tutti::test::complex_tensors_cases {
namespace {

using exact::draw;
using ::testing::HasSubstr;

torch::Tensor draw_complex(std::uint64_t seed, std::vector<std::int64_t> sizes) {
  sizes.push_back(2);
  return torch::view_as_complex(draw(seed, sizes));
}

// promise: tensors.h#all_reduce, group#complex-tensors
TEST(Complex, CollectivesMoveTheRealNumbers) {
  for (const auto type : {torch::kComplexFloat, torch::kComplexDouble}) {
    for (const int workers : {1, 2, 3}) {
      on_workers(workers, [&](const Job& job) {
        const Group group(job);
        const auto mine = [&](std::vector<std::int64_t> sizes) {
          return here(
              draw_complex(static_cast<std::uint64_t>(job.rank()) + 7, std::move(sizes)).to(type));
        };
        const auto expect_equal = [](const torch::Tensor& complex, const torch::Tensor& real) {
          EXPECT_TRUE(complex.is_complex());
          EXPECT_TRUE(torch::equal(torch::view_as_real(complex), real));
        };
        for (const auto reduction : {Reduction::sum, Reduction::mean}) {
          auto x = mine({6, 3});
          auto twin = as_reals(x).clone();
          all_reduce(group, x, reduction);
          all_reduce(group, twin, reduction);
          expect_equal(x, twin);
          x = mine({6, 3}).t();
          twin = as_reals(x).clone();
          auto work = start_all_reduce(group, x, reduction);
          work.wait();
          all_reduce(group, twin, reduction);
          expect_equal(x, twin);
          x = mine({6});
          twin = as_reals(x).clone();
          auto out = torch::zeros_like(x), real = torch::zeros_like(twin);
          reduce(group, x.conj(), out, reduction, 0);
          reduce(group, as_reals(x.conj().resolve_conj()), real, reduction, 0);
          if (job.rank() == 0) expect_equal(out, real);
          out = torch::zeros({6 / workers}, x.options());
          real = as_reals(out).clone();
          reduce_scatter(group, x, out, reduction);
          reduce_scatter(group, twin, real, reduction);
          expect_equal(out, real);
        }
        expect_equal(all_gather(group, mine({2, 3})), all_gather(group, as_reals(mine({2, 3}))));
        const auto rows = mine({1 + job.rank(), 3});
        expect_equal(all_gather_variable(group, rows), all_gather_variable(group, as_reals(rows)));
        auto sent = mine({4}), twin = as_reals(sent).clone();
        broadcast(group, sent, workers - 1);
        broadcast(group, twin, workers - 1);
        expect_equal(sent, twin);
        for (const auto reduction : {Reduction::max, Reduction::min, Reduction::product}) {
          EXPECT_THAT(text_of<Unsupported>([&] { all_reduce(group, sent, reduction); }),
                      HasSubstr("of complex numbers"));
          EXPECT_THAT(
              text_of<Unsupported>([&] { start_all_reduce(group, sent, reduction).wait(); }),
              HasSubstr("of complex numbers"));
          EXPECT_THAT(text_of<Unsupported>([&] { reduce(group, sent, sent, reduction, 0); }),
                      HasSubstr("of complex numbers"));
          EXPECT_THAT(text_of<Unsupported>([&] { reduce_scatter(group, sent, sent, reduction); }),
                      HasSubstr("of complex numbers"));
          EXPECT_THAT(text_of<Unsupported>([&] { ops::all_reduce(group, sent, reduction); }),
                      HasSubstr("of complex numbers"));
        }
      });
    }
  }
}

/// With its gradient, which has torch's conjugate bit.
using Op = std::function<torch::Tensor(const Group&, const torch::Tensor&)>;

// promise: operations#complex-tensors
TEST(Complex, OperationsAndTheirGradientsAreThoseOfTheRealNumbers) {
  for (const int workers : {1, 2, 3}) {
    on_workers(workers, [&](const Job& job) {
      const Group group(job);
      const auto size = static_cast<std::size_t>(workers);
      std::vector<std::int64_t> rows(size, 0);
      rows[0] = 4;
      rows.back() += 2;
      const std::vector<std::int64_t> two(size, 2);
      const std::vector<std::pair<std::string, Op>> operations = {
          {"all_reduce",
           [](const Group& g, const torch::Tensor& x) {
             return ops::all_reduce(g, x, Reduction::sum);
           }},
          {"mean", [](const Group& g,
                      const torch::Tensor& x) { return ops::all_reduce(g, x, Reduction::mean); }},
          {"reduce", [](const Group& g,
                        const torch::Tensor& x) { return ops::reduce(g, x, Reduction::mean, 0); }},
          {"reduce_scatter",
           [&](const Group& g, const torch::Tensor& x) {
             return ops::reduce_scatter(g, x, Reduction::sum, rows);
           }},
          {"all_gather",
           [](const Group& g, const torch::Tensor& x) {
             return ops::all_gather(g, x.slice(0, 0, 2 + g.rank()));
           }},
          {"gather", [](const Group& g, const torch::Tensor& x) { return ops::gather(g, x, 0); }},
          {"broadcast",
           [](const Group& g, const torch::Tensor& x) { return ops::broadcast(g, x, 0); }},
          {"scatter",
           [&](const Group& g, const torch::Tensor& x) { return ops::scatter(g, x, rows, 0); }},
          {"all_to_all",
           [&](const Group& g, const torch::Tensor& x) {
             return ops::all_to_all(g, x.slice(0, 0, 2 * g.size()), two, two);
           }},
          {"copy_to_group",
           [](const Group& g, const torch::Tensor& x) { return ops::copy_to_group(g, x); }},
          {"reduce_from_group",
           [](const Group& g, const torch::Tensor& x) { return ops::reduce_from_group(g, x); }}};
      for (const auto& [name, operation] : operations) {
        const auto value = draw_complex(static_cast<std::uint64_t>(job.rank()) + 3, {6, 2});
        auto x = value.clone().requires_grad_();
        auto twin = torch::view_as_real(value).clone().requires_grad_();
        const auto y = operation(group, x);
        const auto z = operation(group, twin);
        EXPECT_TRUE(y.is_complex()) << name;
        const auto parts = torch::view_as_real(y.detach());
        EXPECT_TRUE(y.numel() == 0 || torch::equal(parts, z.detach())) << name;
        // A member other than the root may have an empty result.
        const auto weight =
            draw_complex(static_cast<std::uint64_t>(job.rank()) + 9, y.sizes().vec());
        const auto loss = torch::real((y * weight.conj()).sum());
        ops::backward(group, ops::attach(loss, {y}));
        const auto of_twin = z.numel() == 0 ? z.sum() : (z * torch::view_as_real(weight)).sum();
        ops::backward(group, ops::attach(of_twin, {z}));
        ASSERT_EQ(x.grad().defined(), twin.grad().defined()) << name;
        if (!x.grad().defined()) continue;
        EXPECT_TRUE(
            torch::allclose(torch::view_as_real(x.grad().resolve_conj()), twin.grad(), 1e-6, 1e-7))
            << name;
      }
    });
  }
}

// promise: operations#complex-tensors
TEST(Complex, PartialValuesAreThoseOfTheRealNumbers) {
  for (const int workers : {1, 3}) {
    on_workers(workers, [&](const Job& job) {
      const Group group(job);
      for (const auto type : {torch::kComplexFloat, torch::kComplexDouble}) {
        const auto value =
            draw_complex(static_cast<std::uint64_t>(job.rank()) + 3, {4, 2}).to(type);
        for (const bool is_mean : {false, true}) {
          auto x = value.clone().requires_grad_();
          auto twin = torch::view_as_real(value).clone().requires_grad_();
          const auto whole = [&](const torch::Tensor& one) {
            if (!is_mean) return partial_sum(group, one).reduce();
            return partial_mean(group, one, 1.0 + job.rank()).reduce();
          };
          const auto y = whole(x), z = whole(twin);
          EXPECT_EQ(y.scalar_type(), type);
          EXPECT_TRUE(torch::allclose(torch::view_as_real(y.detach()), z.detach(), 1e-6, 1e-7));
          ops::backward(group, torch::view_as_real(y).square().sum());
          ops::backward(group, z.square().sum());
          EXPECT_TRUE(torch::allclose(torch::view_as_real(x.grad().resolve_conj()), twin.grad(),
                                      1e-5, 1e-6));
        }
      }
    });
  }
}

}  // namespace
}  // namespace tutti::test::complex_tensors_cases
