// Stochastic gradient descent, as torch.optim.SGD documents it (Sutskever et al. 2013 with the
// learning rate outside the momentum):
//   p ← p·(1 − κ)        g ← g + λ·p        v ← μ·v + (1 − τ)·g, or v ← g the first time
//   d = g + μ·v (Nesterov), v, or g without momentum        p ← p − η·d
// κ = 0 is torch's; otherwise SGDW (Loshchilov and Hutter 2019, algorithm 1).

template <class T>
class RuleOf<SgdNumbers, T> {
 public:
  explicit RuleOf(const SgdNumbers& by)
      : rate_(static_cast<T>(by.rate)),
        momentum_(static_cast<T>(by.momentum)),
        fresh_(static_cast<T>(by.fresh)),
        decay_(static_cast<T>(by.decay)),
        kept_(static_cast<T>(1 - by.shrink)),
        decays_(by.decay != 0),
        shrinks_(by.shrink != 0),
        moves_(by.momentum != 0),
        starts_(by.starts),
        nesterov_(by.nesterov) {}

  template <class At>
  [[gnu::always_inline]] void operator()(const At& at) const {
    auto p = at.parameter();
    auto g = at.gradient();
    if (shrinks_) p = Mul(p, at.all(kept_));
    if (decays_) g = Add(g, at.times(decay_, p));
    if (moves_) {
      auto v = g;
      if (!starts_) v = Add(at.times(momentum_, at.state(0)), at.times(fresh_, g));
      at.set_state(0, v);
      g = nesterov_ ? Add(g, at.times(momentum_, v)) : v;
    }
    at.set_parameter(Sub(p, at.times(rate_, g)));
  }

 private:
  T rate_, momentum_, fresh_, decay_, kept_;
  bool decays_, shrinks_, moves_, starts_, nesterov_;
};
