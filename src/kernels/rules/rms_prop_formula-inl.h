// RMSprop (Tieleman and Hinton 2012) in torch.optim's form, centered as Graves 2013, with L2 decay:
//   g ← g + λ·p        s ← α·s + ((1 − α)·g)·g        a ← α·a + (1 − α)·g (centered)
//   r = √s + ε, or √max(s − a·a, 0) + ε (centered)
//   p ← p − (η·g)/r, or b ← μ·b + g/r and p ← p − η·b (momentum)
// Where rounding makes s − a·a negative, torch's r is NaN.

template <class T>
class RuleOf<RmsPropNumbers, T> {
 public:
  explicit RuleOf(const RmsPropNumbers& by)
      : rate_(static_cast<T>(by.rate)),
        alpha_(static_cast<T>(by.alpha)),
        fresh_(static_cast<T>(1 - by.alpha)),
        epsilon_(static_cast<T>(by.epsilon)),
        decay_(static_cast<T>(by.decay)),
        momentum_(static_cast<T>(by.momentum)),
        decays_(by.decay != 0),
        moves_(by.momentum != 0),
        centered_(by.centered) {}

  template <class At>
  [[gnu::always_inline]] void operator()(const At& at) const {
    const auto p = at.parameter();
    auto g = at.gradient();
    if (decays_) g = Add(g, at.times(decay_, p));
    const auto s = Add(at.times(alpha_, at.state(0)), Mul(at.times(fresh_, g), g));
    at.set_state(0, s);
    auto spread = s;
    if (centered_) {
      const std::size_t mean = moves_ ? 2 : 1;
      const auto a = Add(at.times(alpha_, at.state(mean)), at.times(fresh_, g));
      at.set_state(mean, a);
      const auto zero = at.all(0);
      spread = Sub(s, Mul(a, a));
      spread = IfThenElse(Lt(spread, zero), zero, spread);
    }
    const auto below = Add(Sqrt(spread), at.all(epsilon_));
    auto step = Div(at.times(rate_, g), below);
    if (moves_) {
      const auto b = Add(at.times(momentum_, at.state(1)), Div(g, below));
      at.set_state(1, b);
      step = at.times(rate_, b);
    }
    at.set_parameter(Sub(p, step));
  }

 private:
  T rate_, alpha_, fresh_, epsilon_, decay_, momentum_;
  bool decays_, moves_, centered_;
};
