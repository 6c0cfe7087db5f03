// The library tutti_mpi: mpi/mpi_functions.h, by the MPI that was found when this was built. It
// needs nothing else of Tutti.

#include "mpi/mpi_functions.h"

#include <mpi.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

namespace {

using tutti::MpiFunctions;
using Request = MpiFunctions::Request;
static_assert(sizeof(MPI_Request) <= sizeof(Request));
static_assert(MPI_SUCCESS == 0);

Request packed(MPI_Request request) {
  Request bits = 0;
  std::memcpy(&bits, &request, sizeof(MPI_Request));
  return bits;
}

MPI_Request unpacked(Request bits) {
  MPI_Request request{};
  std::memcpy(&request, &bits, sizeof(MPI_Request));
  return request;
}

MPI_Comm communicator_at(void* pointer) { return *static_cast<MPI_Comm*>(pointer); }

void name(char* text, std::size_t size) {
  std::array<char, MPI_MAX_LIBRARY_VERSION_STRING> whole{};
  int length = 0;
  MPI_Get_library_version(whole.data(), &length);
  const auto end = std::find_if(whole.begin(), whole.begin() + length,
                                [](char c) { return c == ',' || c == '\n'; });
  const auto count = std::min<std::size_t>(size - 1, static_cast<std::size_t>(end - whole.begin()));
  std::copy_n(whole.begin(), count, text);
  text[count] = 0;
}

void text_of(int code, char* text, std::size_t size) {
  std::array<char, MPI_MAX_ERROR_STRING> whole{};
  int length = 0;
  MPI_Error_string(code, whole.data(), &length);
  const auto count = std::min<std::size_t>(size - 1, static_cast<std::size_t>(length));
  std::copy_n(whole.begin(), count, text);
  text[count] = 0;
}

int start(bool* is_new, bool* allows_threads) {
  int is_there = 0;
  int level = MPI_THREAD_SINGLE;
  MPI_Initialized(&is_there);
  *is_new = is_there == 0;
  const int code = is_there != 0 ? MPI_Query_thread(&level)
                                 : MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &level);
  *allows_threads = level >= MPI_THREAD_MULTIPLE;
  return code;
}

int end() {
  int is_over = 0;
  MPI_Finalized(&is_over);
  return is_over != 0 ? MPI_SUCCESS : MPI_Finalize();
}

int rank() {
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  return rank;
}

int size() {
  int size = 0;
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  return size;
}

int make_communicator(const int* ranks, int count, int tag, void** communicator) {
  MPI_Group world = MPI_GROUP_NULL;
  MPI_Group group = MPI_GROUP_NULL;
  MPI_Comm made = MPI_COMM_NULL;
  if (const int code = MPI_Comm_group(MPI_COMM_WORLD, &world)) return code;
  if (const int code = MPI_Group_incl(world, count, ranks, &group)) return code;
  if (const int code = MPI_Comm_create_group(MPI_COMM_WORLD, group, tag, &made)) return code;
  MPI_Group_free(&group);
  MPI_Group_free(&world);
  MPI_Comm_set_errhandler(made, MPI_ERRORS_RETURN);
  *communicator = new MPI_Comm(made);
  return MPI_SUCCESS;
}

int send(const void* bytes, int count, int peer, int tag, void* communicator, Request* request) {
  MPI_Request made = MPI_REQUEST_NULL;
  const int code =
      MPI_Isend(bytes, count, MPI_BYTE, peer, tag, communicator_at(communicator), &made);
  *request = packed(made);
  return code;
}

int receive(void* bytes, int count, int peer, int tag, void* communicator, Request* request) {
  MPI_Request made = MPI_REQUEST_NULL;
  const int code =
      MPI_Irecv(bytes, count, MPI_BYTE, peer, tag, communicator_at(communicator), &made);
  *request = packed(made);
  return code;
}

int test(Request* requests, int count, bool* are_complete) {
  std::vector<MPI_Request> open(static_cast<std::size_t>(count));
  std::transform(requests, requests + count, open.begin(), unpacked);
  int are_done = 0;
  const int code = MPI_Testall(count, open.data(), &are_done, MPI_STATUSES_IGNORE);
  std::transform(open.begin(), open.end(), requests, packed);
  *are_complete = are_done != 0;
  return code;
}

int wait(Request* request) {
  auto open = unpacked(*request);
  const int code = MPI_Wait(&open, MPI_STATUS_IGNORE);
  *request = packed(open);
  return code;
}

int cancel(Request* request) {
  auto open = unpacked(*request);
  return MPI_Cancel(&open);
}

}  // namespace

const MpiFunctions* tutti_mpi_functions() {
  static const MpiFunctions functions = {
      .version = MpiFunctions::kVersion,
      .no_request = packed(MPI_REQUEST_NULL),
      .name = name,
      .text = text_of,
      .start = start,
      .end = end,
      .rank = rank,
      .size = size,
      .make_communicator = make_communicator,
      .send = send,
      .receive = receive,
      .test = test,
      .wait = wait,
      .cancel = cancel,
  };
  return &functions;
}
