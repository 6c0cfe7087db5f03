// A library with those functions of NVIDIA's driver that Tutti calls: two GPUs, on which a context
// is there once stand_in_driver_context(true) was called.

#include <cstddef>
#include <cstdio>
#include <cstring>

namespace {
bool has_context = false;
}  // namespace

extern "C" {

void stand_in_driver_context(bool is_there) { has_context = is_there; }

int cuInit(unsigned) { return 0; }
int cuDriverGetVersion(int* version) {
  *version = 13000;
  return 0;
}
int cuDeviceGetCount(int* count) {
  *count = 2;
  return 0;
}
int cuDeviceGetName(char* name, int size, int device) {
  std::snprintf(name, static_cast<std::size_t>(size), "Stand-in %d", device);
  return 0;
}
int cuDeviceGetAttribute(int* value, int attribute, int device) {
  if (attribute != 16) return 1;  // the number of multiprocessors, in cuda.h
  *value = 100 + device;
  return 0;
}
int cuDeviceTotalMem_v2(std::size_t* bytes, int) {
  *bytes = std::size_t{3} << 30;
  return 0;
}
int cuDeviceGetUuid_v2(unsigned char* uuid, int device) {
  std::memset(uuid, 0xa0 + device, 16);
  return 0;
}
int cuDevicePrimaryCtxGetState(int device, unsigned* flags, int* is_active) {
  *flags = 0;
  *is_active = has_context && device == 1 ? 1 : 0;
  return 0;
}

}  // extern "C"
