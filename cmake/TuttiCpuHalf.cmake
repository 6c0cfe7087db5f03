# What find_package(Torch) gives, for the half of a GPU build that needs no GPU: libtorch_cpu and libc10, in
# TORCH_INSTALL_PREFIX. The build's own file requires a CUDA toolkit.
set(TORCH_INCLUDE_DIRS ${TORCH_INSTALL_PREFIX}/include
                       ${TORCH_INSTALL_PREFIX}/include/torch/csrc/api/include)
set(TORCH_LIBRARIES torch)
foreach(file version.py build-version)
  if(EXISTS ${TORCH_INSTALL_PREFIX}/${file})
    file(STRINGS ${TORCH_INSTALL_PREFIX}/${file} version LIMIT_COUNT 1 REGEX "[0-9]+\\.[0-9]+\\.[0-9]+")
    string(REGEX MATCH "[0-9]+\\.[0-9]+\\.[0-9]+" Torch_VERSION "${version}")
    break()
  endif()
endforeach()
if(NOT TARGET torch)
  # The linker looks up what libtorch_cpu itself is linked with: beside it, or where pip puts CUDA's libraries.
  file(GLOB cuda_libraries ${TORCH_INSTALL_PREFIX}/../nvidia/*/lib/libcu*.so.*
                           ${TORCH_INSTALL_PREFIX}/lib/libcudart*.so.* ${TORCH_INSTALL_PREFIX}/lib/libcupti*.so.*)
  foreach(library c10 torch_cpu)
    add_library(${library} SHARED IMPORTED GLOBAL)
    set_target_properties(${library} PROPERTIES
      IMPORTED_LOCATION ${TORCH_INSTALL_PREFIX}/lib/lib${library}.so
      IMPORTED_LINK_DEPENDENT_LIBRARIES "${cuda_libraries}")
  endforeach()
  # Operators register themselves as the library is loaded: it is linked also where no symbol of it is used.
  add_library(torch INTERFACE IMPORTED GLOBAL)
  set_target_properties(torch PROPERTIES
    INTERFACE_INCLUDE_DIRECTORIES "${TORCH_INCLUDE_DIRS}"
    INTERFACE_COMPILE_FEATURES cxx_std_20
    INTERFACE_COMPILE_DEFINITIONS "USE_DISTRIBUTED;USE_C10D_GLOO;USE_RPC;USE_TENSORPIPE"
    INTERFACE_LINK_LIBRARIES "-Wl,--no-as-needed;torch_cpu;c10;-Wl,--as-needed")
endif()
set(Torch_FOUND TRUE)
set(TORCH_FOUND TRUE)
