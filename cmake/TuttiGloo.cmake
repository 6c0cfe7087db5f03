# TUTTI_GLOO: whether Gloo's headers are there and go with libtorch's.

include(CheckCXXSourceCompiles)
function(tutti_find_gloo)
  set(CMAKE_TRY_COMPILE_TARGET_TYPE STATIC_LIBRARY)
  set(CMAKE_REQUIRED_FLAGS -std=c++20)
  set(CMAKE_REQUIRED_DEFINITIONS -DUSE_C10D_GLOO)
  set(CMAKE_REQUIRED_INCLUDES ${TORCH_INCLUDE_DIRS})
  check_cxx_source_compiles(
    "#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>\nvoid use() {}" TUTTI_GLOO)
endfunction()
tutti_find_gloo()
