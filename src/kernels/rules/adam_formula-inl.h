// Adam (Kingma and Ba 2015, algorithm 1) with L2 decay, or AdamW (Loshchilov and Hutter 2019,
// algorithm 2; κ = η·λ is libtorch's form):
//   p ← p·(1 − κ) (AdamW)        g ← g + λ·p (Adam)
//   m ← β1·m + (1 − β1)·g        v ← β2·v + ((1 − β2)·g)·g
//   p ← p − ((η/(1 − β1^t))·m) / (√v/√(1 − β2^t) + ε)
// With AMSGrad (Reddi, Kale and Kumar 2018) in torch.optim's form the last line has w ← max(w, v)
// in the place of v.

template <class T>
class RuleOf<AdamNumbers, T> {
 public:
  explicit RuleOf(const AdamNumbers& by)
      : beta1_(static_cast<T>(by.beta1)),
        fresh1_(static_cast<T>(1 - by.beta1)),
        beta2_(static_cast<T>(by.beta2)),
        fresh2_(static_cast<T>(1 - by.beta2)),
        epsilon_(static_cast<T>(by.epsilon)),
        rate_(static_cast<T>(by.rate)),
        root_(static_cast<T>(by.root)),
        decay_(static_cast<T>(by.decay)),
        kept_(static_cast<T>(1 - by.shrink)),
        decays_(by.decay != 0),
        shrinks_(by.shrink != 0),
        is_amsgrad_(by.amsgrad) {}

  template <class At>
  [[gnu::always_inline]] void operator()(const At& at) const {
    auto p = at.parameter();
    auto g = at.gradient();
    if (shrinks_) p = Mul(p, at.all(kept_));
    if (decays_) g = Add(g, at.times(decay_, p));
    const auto m = Add(at.times(beta1_, at.state(0)), at.times(fresh1_, g));
    const auto v = Add(at.times(beta2_, at.state(1)), Mul(at.times(fresh2_, g), g));
    at.set_state(0, m);
    at.set_state(1, v);
    auto most = v;
    if (is_amsgrad_) {
      const auto before = at.state(2);
      most = IfThenElse(Lt(v, before), before, v);
      at.set_state(2, most);
    }
    const auto below = Add(Div(Sqrt(most), at.all(root_)), at.all(epsilon_));
    at.set_parameter(Sub(p, Div(at.times(rate_, m), below)));
  }

 private:
  T beta1_, fresh1_, beta2_, fresh2_, epsilon_, rate_, root_, decay_, kept_;
  bool decays_, shrinks_, is_amsgrad_;
};
