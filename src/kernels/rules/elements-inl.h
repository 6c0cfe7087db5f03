// What a rule reads and writes. Included in each namespace that has values, with Add(), Set(),
// LoadU() and so on as Highway names them; D is the tag of a value.

/// The memory of an update, of type T.
template <class T>
struct Streams {
  static_assert(kMaxStates == 4);

  explicit Streams(const UpdateTarget& target)
      : gradient(static_cast<const T*>(target.gradient)),
        parameter(static_cast<T*>(target.parameter)),
        states{static_cast<T*>(target.states[0]), static_cast<T*>(target.states[1]),
               static_cast<T*>(target.states[2]), static_cast<T*>(target.states[3])},
        count(static_cast<std::size_t>(target.count)),
        scale(static_cast<T>(target.gradient_scale)),
        bound(static_cast<T>(target.clip_value)),
        clips(target.clip_value != 0) {}

  const T* gradient;
  T* parameter;
  T* states[kMaxStates];
  std::size_t count;
  T scale;
  T bound;
  bool clips;
};

/// What of it lies at one place: as many elements as a value has.
template <class D, class T>
class ElementsAt {
 public:
  ElementsAt(D d, const Streams<T>& in, std::size_t i) : d_(d), in_(in), i_(i) {}

  /// The number as a value.
  [[gnu::always_inline]] auto all(T number) const { return Set(d_, number); }
  template <class Value>
  [[gnu::always_inline]] auto times(T number, Value value) const {
    return Mul(all(number), value);
  }

  /// Scaled and clamped. A NaN is neither above nor below, so it passes.
  [[gnu::always_inline]] auto gradient() const {
    const auto g = Mul(LoadU(d_, in_.gradient + i_), all(in_.scale));
    if (!in_.clips) return g;
    const auto high = all(in_.bound);
    const auto low = all(-in_.bound);
    return IfThenElse(Gt(g, high), high, IfThenElse(Lt(g, low), low, g));
  }
  [[gnu::always_inline]] auto parameter() const { return LoadU(d_, in_.parameter + i_); }
  [[gnu::always_inline]] auto state(std::size_t k) const { return LoadU(d_, in_.states[k] + i_); }

  template <class Value>
  [[gnu::always_inline]] void set_parameter(Value value) const {
    StoreU(value, d_, in_.parameter + i_);
  }
  template <class Value>
  [[gnu::always_inline]] void set_state(std::size_t k, Value value) const {
    StoreU(value, d_, in_.states[k] + i_);
  }

 private:
  D d_;
  const Streams<T>& in_;
  std::size_t i_;
};

/// The arithmetic of the rule that has these numbers, in T; each rule specialises it.
template <class Numbers, class T>
class RuleOf;
