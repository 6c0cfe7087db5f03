#include "support/refused_calls.h"

#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <cstddef>

namespace tutti {
namespace {

const sock_filter kAllow = BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);

sock_filter load(std::size_t offset) {
  return BPF_STMT(BPF_LD | BPF_W | BPF_ABS, static_cast<unsigned>(offset));
}

// Otherwise the next `lines` are left out.
sock_filter go_on_if(int value, unsigned char lines) {
  return BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<unsigned>(value), 0, lines);
}

sock_filter fail(int error) {
  return BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | static_cast<unsigned>(error));
}

}  // namespace

RefusedCalls::RefusedCalls() : filter_{kAllow} {}

void RefusedCalls::add(int call, int error) {
  filter_.insert(filter_.end() - 1,
                 {load(offsetof(seccomp_data, nr)), go_on_if(call, 1), fail(error)});
}

// An int is in the low half of an argument.
void RefusedCalls::add(int call, int descriptor, int error) {
  filter_.insert(filter_.end() - 1,
                 {load(offsetof(seccomp_data, nr)), go_on_if(call, 3),
                  load(offsetof(seccomp_data, args)), go_on_if(descriptor, 1), fail(error)});
}

bool RefusedCalls::install() {
  const sock_fprog program{.len = static_cast<unsigned short>(filter_.size()),
                           .filter = filter_.data()};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

}  // namespace tutti
