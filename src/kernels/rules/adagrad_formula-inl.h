// Adagrad (Duchi, Hazan and Singer 2011) in torch.optim's form, with L2 decay:
//   g ← g + λ·p        s ← s + g·g        p ← p − ((η/(1 + (t − 1)·δ))·g) / (√s + ε)

template <class T>
class RuleOf<AdagradNumbers, T> {
 public:
  explicit RuleOf(const AdagradNumbers& by)
      : rate_(static_cast<T>(by.rate)),
        epsilon_(static_cast<T>(by.epsilon)),
        decay_(static_cast<T>(by.decay)),
        decays_(by.decay != 0) {}

  template <class At>
  [[gnu::always_inline]] void operator()(const At& at) const {
    const auto p = at.parameter();
    auto g = at.gradient();
    if (decays_) g = Add(g, at.times(decay_, p));
    const auto s = Add(at.state(0), Mul(g, g));
    at.set_state(0, s);
    at.set_parameter(Sub(p, Div(at.times(rate_, g), Add(Sqrt(s), at.all(epsilon_)))));
  }

 private:
  T rate_, epsilon_, decay_;
  bool decays_;
};
