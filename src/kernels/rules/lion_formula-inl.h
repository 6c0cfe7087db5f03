// Lion (Chen et al. 2023, arXiv 2302.06675, algorithm 2), whose decoupled decay is κ = η·λ:
//   p ← p·(1 − κ)        p ← p − η·sign(β1·m + (1 − β1)·g)        m ← β2·m + (1 − β2)·g
// The sign of 0 is 0, that of NaN is NaN.

template <class T>
class RuleOf<LionNumbers, T> {
 public:
  explicit RuleOf(const LionNumbers& by)
      : rate_(static_cast<T>(by.rate)),
        beta1_(static_cast<T>(by.beta1)),
        fresh1_(static_cast<T>(1 - by.beta1)),
        beta2_(static_cast<T>(by.beta2)),
        fresh2_(static_cast<T>(1 - by.beta2)),
        kept_(static_cast<T>(1 - by.shrink)),
        shrinks_(by.shrink != 0) {}

  template <class At>
  [[gnu::always_inline]] void operator()(const At& at) const {
    auto p = at.parameter();
    const auto g = at.gradient();
    const auto m = at.state(0);
    if (shrinks_) p = Mul(p, at.all(kept_));
    const auto c = Add(at.times(beta1_, m), at.times(fresh1_, g));
    const auto zero = at.all(0);
    const auto sign = IfThenElse(Gt(c, zero), at.all(1), IfThenElse(Lt(c, zero), at.all(-1), c));
    at.set_parameter(Sub(p, at.times(rate_, sign)));
    at.set_state(0, Add(at.times(beta2_, m), at.times(fresh2_, g)));
  }

 private:
  T rate_, beta1_, fresh1_, beta2_, fresh2_, kept_;
  bool shrinks_;
};
