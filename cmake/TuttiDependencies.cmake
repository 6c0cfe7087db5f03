# What Tutti is built with and what programs on it are linked with, found so that whoever takes it in sees the
# same targets. Read by CMakeLists.txt, and by the installed package.

set(tutti_cmake_folder ${CMAKE_CURRENT_LIST_DIR})

# tutti_require(<name> <package of Debian> <arguments of find_package> …): notes what is missing.
macro(tutti_require name debian)
  find_package(${name} QUIET ${ARGN})
  if(NOT ${name}_FOUND)
    list(APPEND tutti_missing ${debian})
  endif()
endmacro()

# tutti_require_module(<prefix> <package of Debian> <module>): the same for what pkg-config finds.
macro(tutti_require_module prefix debian module)
  if(PkgConfig_FOUND)
    pkg_check_modules(${prefix} QUIET IMPORTED_TARGET GLOBAL ${module})
  endif()
  if(NOT ${prefix}_FOUND)
    list(APPEND tutti_missing ${debian})
  endif()
endmacro()

macro(tutti_find_core_dependencies)
  tutti_require(Threads libc6-dev)
  tutti_require(fmt libfmt-dev)
  tutti_require(spdlog libspdlog-dev)
  tutti_require(OpenSSL libssl-dev COMPONENTS Crypto)
  tutti_require(PkgConfig pkg-config)
  tutti_require_module(HWY libhwy-dev libhwy)
  tutti_require_module(XXHASH libxxhash-dev libxxhash)
endmacro()

# Sets <variable> to what installs all that tutti_require() has missed; to "" if that is nothing.
macro(tutti_missing_line variable)
  set(${variable} "")
  if(tutti_missing)
    list(REMOVE_DUPLICATES tutti_missing)
    list(JOIN tutti_missing " " tutti_packages)
    set(${variable} "Tutti needs libraries that were not found. On Debian and Ubuntu this installs them: apt-get install ${tutti_packages}")
  endif()
endmacro()

# tutti_find_torch(<folder> …): libtorch's targets, from CMAKE_PREFIX_PATH, Torch_DIR, the folder in the variable TUTTI_LIBTORCH or one of the given ones. Of a
# build for GPUs, on a machine without a CUDA toolkit, they are those of the half that needs none.
macro(tutti_find_torch)
  find_path(tutti_torch_cmake TorchConfig.cmake HINTS ${Torch_DIR} $ENV{TUTTI_LIBTORCH} ${ARGN}
            PATH_SUFFIXES share/cmake/Torch Torch NO_CACHE)
  set(tutti_cpu_half FALSE)
  if(tutti_torch_cmake)
    get_filename_component(tutti_torch_folder ${tutti_torch_cmake}/../../.. ABSOLUTE)
    if(NOT EXISTS ${tutti_torch_folder}/lib/libtorch.so)  # what script/compat leaves of a build for GPUs
      set(tutti_cpu_half TRUE)
    elseif(EXISTS ${tutti_torch_folder}/lib/libtorch_cuda.so)
      find_package(CUDAToolkit QUIET)
      if(NOT CUDAToolkit_FOUND)
        set(tutti_cpu_half TRUE)
        message(STATUS "Tutti: libtorch in ${tutti_torch_folder} is a build for GPUs, and there is no CUDA toolkit: "
                       "tensors of the CPU are what this build serves")
      endif()
    endif()
  endif()
  if(tutti_cpu_half)
    set(Torch_DIR ${tutti_torch_cmake} CACHE PATH "libtorch's CMake files" FORCE)
    set(TORCH_INSTALL_PREFIX ${tutti_torch_folder})
    include(${tutti_cmake_folder}/TuttiCpuHalf.cmake)
  else()
    find_package(Torch QUIET HINTS $ENV{TUTTI_LIBTORCH} ${ARGN})
  endif()
endmacro()
