// Two vectors as one of twice as many lanes, for machines whose registers have fewer than 16.
//
// Compilers keep their own vectors in memory where these are wider than a register; this they take
// apart. Owns nothing: an operation is that of both halves.
#pragma once

#include <type_traits>
#include <utility>

#include "native.h"

namespace phloem {

template <class H>
struct alignas(2 * sizeof(H)) Twice {
  H low, high;

  Twice() = default;
  Twice(H low, H high) : low(low), high(high) {}
  // The same bits as lanes of another type.
  template <class G>
  explicit Twice(const Twice<G>& other) : low((H)other.low), high((H)other.high) {}

  auto operator[](int lane) const {
    constexpr int HALF = sizeof(H) / sizeof(std::declval<H>()[0]);
    return lane < HALF ? low[lane] : high[lane - HALF];
  }
};

template <class V>
constexpr bool IS_TWICE = false;
template <class H>
constexpr bool IS_TWICE<Twice<H>> = true;

template <class H>
using Lane = std::remove_cvref_t<decltype(std::declval<const Twice<H>&>()[0])>;

#define PHLOEM_LANEWISE(OP)                                                                       \
  template <class H>                                                                              \
  inline auto operator OP(Twice<H> a, Twice<H> b) {                                               \
    return Twice(a.low OP b.low, a.high OP b.high);                                               \
  }                                                                                               \
  template <class H>                                                                              \
  inline auto operator OP(Twice<H> a, Lane<H> b) {                                                \
    return Twice(a.low OP b, a.high OP b);                                                        \
  }
PHLOEM_LANEWISE(+)
PHLOEM_LANEWISE(-)
PHLOEM_LANEWISE(*)
PHLOEM_LANEWISE(/)
PHLOEM_LANEWISE(&)
PHLOEM_LANEWISE(|)
PHLOEM_LANEWISE(<<)
PHLOEM_LANEWISE(>>)
PHLOEM_LANEWISE(^)
PHLOEM_LANEWISE(<)
PHLOEM_LANEWISE(>)
PHLOEM_LANEWISE(>=)
PHLOEM_LANEWISE(!=)
#undef PHLOEM_LANEWISE

template <class H>
inline Twice<H> operator-(Lane<H> a, Twice<H> b) {
  return {a - b.low, a - b.high};
}
template <class H>
inline Twice<H> operator-(Twice<H> a) {
  return {-a.low, -a.high};
}
template <class H>
inline Twice<H> operator~(Twice<H> a) {
  return {~a.low, ~a.high};
}
template <class H>
inline Twice<H>& operator+=(Twice<H>& a, Twice<H> b) {
  return a = a + b;
}

template <class V, class T>
  requires IS_TWICE<V>
inline V load(const T* p) {
  using H = decltype(V::low);
  const char* at = reinterpret_cast<const char*>(p);
  return {load<H>(at), load<H>(at + sizeof(H))};
}

template <class T, class H>
inline void store(T* p, Twice<H> v) {
  char* at = reinterpret_cast<char*>(p);
  store(at, v.low);
  store(at + sizeof(H), v.high);
}

template <class C, class H>
inline Twice<H> select(Twice<C> condition, Twice<H> a, Twice<H> b) {
  return {select(condition.low, a.low, b.low), select(condition.high, a.high, b.high)};
}

}  // namespace phloem
