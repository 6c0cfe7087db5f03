#pragma once

// A device that every machine has: libtorch's PrivateUse1, as strict with its users as a GPU is.
//
// Streams run on demand. A program never sees an order that nothing guarantees it: streams that
// are held do nothing until somebody asks for a result of theirs, the others have always run as
// far as they can. So a wait that is missing gives wrong bytes every time, whatever the machine is
// busy with. What asks: synchronising a stream, an event or the device; item(); copies that block;
// the third query in a row that found its stream behind. What does not: a stream's wait for an
// event, memory, the end of a backward.
// Memory cannot be touched by the host: its addresses have no access (SIGSEGV). It is full of NaN
// (bytes 0xFF) when it is allocated, and again, in the order of its stream, when it is freed.
// Operators compute what the CPU's do, later, on their stream. Those whose results' sizes depend
// on values wait for it, as on a GPU, and are counted. What fails in a stream is thrown by every
// later synchronisation, for good.
//
// It becomes *the* accelerator of its process: programs of its own, which start workers by exec,
// not fork, and call at::set_num_threads() first. Compare its bytes with those of another run on
// it; they are the CPU's only where the CPU runs the same operators.
//
// Threads: any.

#include <c10/core/Device.h>

#include <cstddef>
#include <cstdint>

namespace tutti::test_device {

/// Makes the device known to libtorch, with side streams held; once per process, before tensors.
void register_device(int devices = 1);
c10::Device device(int index = 0);

/// From now on the calling thread, and the backwards that it starts, make tensors on this device
/// where a factory is told none; a generator of the CPU draws what it would, which is moved.
/// torch::tensor(), from_blob() and pinned memory remain the CPU's.
void make_default(c10::Device device);

/// The streams that run only when somebody needs what they do.
enum class Held {
  kSideStreams,    ///< all but the default ones: side streams are late wherever they may be
  kDefaultStreams  ///< default streams are late, side streams early
};
/// Synchronises, and holds these from now on.
void hold(Held held);

/// Until all streams of all devices have nothing left to do.
void synchronize();

/// Host memory is known to the device until unpin(), as by cudaHostRegister(): copies from and to
/// it may be asynchronous.
void pin(const void* begin, std::size_t bytes);
void unpin(const void* begin);
/// Memory is registered as with CUDA, by testHostRegister() and testHostUnregister(): from now on
/// that fails, or no more.
void refuse_registration(bool refuses);

/// From now on no more than so many bytes are to be had, blocks that were freed aside.
void leave_memory(std::size_t bytes);

struct Counters {
  std::int64_t ran = 0;       ///< kernels, copies and fills that have run
  std::int64_t waited = 0;    ///< operators that waited for their stream
  std::int64_t blocked = 0;   ///< copies that waited for their stream, asked to or not
  std::int64_t unpinned = 0;  ///< copies that blocked although non_blocking: of unpinned memory
  std::int64_t own = 0;       ///< operators that round otherwise than the CPU's
};
/// Since the process began.
Counters counters();

}  // namespace tutti::test_device
