#pragma once

// Memory that forked ranks share with the test that forks them.

#include <sys/mman.h>

#include <cerrno>
#include <new>
#include <system_error>

namespace tutti::test {

/// One `T`, of atomics, at the same address in this process and in those that it forks.
template <class T>
class SharedBetweenProcesses {
 public:
  SharedBetweenProcesses() : at_(new (map()) T) {}
  ~SharedBetweenProcesses() { ::munmap(at_, sizeof(T)); }
  SharedBetweenProcesses(const SharedBetweenProcesses&) = delete;
  SharedBetweenProcesses& operator=(const SharedBetweenProcesses&) = delete;

  T* get() const { return at_; }
  T* operator->() const { return at_; }
  T& operator*() const { return *at_; }

 private:
  static void* map() {
    void* const at =
        ::mmap(nullptr, sizeof(T), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) throw std::system_error(errno, std::generic_category(), "mmap");
    return at;
  }

  T* at_;
};

}  // namespace tutti::test
