# How our own targets are built: C++20, warnings on (errors with TUTTI_WERROR), no contraction of a·b+c (results must
# not depend on what a compiler makes of an expression), sanitizers where asked for. Programs are
# compiled with -fPIC like the libraries, so that they can share a precompiled header.

# tutti_own_target(<name> [TEST])
function(tutti_own_target name)
  cmake_parse_arguments(ARG "TEST" "" "" ${ARGN})
  target_compile_features(${name} PUBLIC cxx_std_20)
  target_compile_options(${name} PRIVATE -Wall -Wextra -ffp-contract=off -fPIC)
  # A project that takes Tutti in may ask for no build type; kernels without optimisation take ten times as long.
  get_property(several_types GLOBAL PROPERTY GENERATOR_IS_MULTI_CONFIG)
  if(NOT CMAKE_BUILD_TYPE AND NOT several_types)
    target_compile_options(${name} PRIVATE -O2)
  endif()
  if(TUTTI_WERROR)
    target_compile_options(${name} PRIVATE -Werror)
  endif()
  # GCC 12 takes some additions of strings for overlapping copies (GCC bug 105329).
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
    target_compile_options(${name} PRIVATE -Wno-restrict)
  endif()
  # GCC 13 and later take a reference that a function returns for one into its temporary argument.
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_GREATER_EQUAL 13)
    target_compile_options(${name} PRIVATE -Wno-dangling-reference)
  endif()
  # What tests call is as users have it, or watched by a sanitizer; they themselves are compiled
  # plainly, in half the time. But a race has two sides, and a test may be one.
  set(is_plain FALSE)
  if(ARG_TEST AND NOT TUTTI_SANITIZE STREQUAL "thread")
    set(is_plain TRUE)
    target_compile_options(${name} PRIVATE -O0)
  endif()
  if(TUTTI_SANITIZE)
    if(NOT is_plain)
      target_compile_options(${name} PRIVATE -fsanitize=${TUTTI_SANITIZE}
                             -fno-sanitize-recover=all -fno-omit-frame-pointer)
    endif()
    target_compile_definitions(${name} PRIVATE TUTTI_SANITIZED)
    target_link_options(${name} PUBLIC -fsanitize=${TUTTI_SANITIZE})
    # GCC's flow warnings misfire on what the thread sanitizer leaves of inlined strings; the other
    # builds of the same sources have them as errors.
    if(TUTTI_SANITIZE STREQUAL "thread")
      target_compile_options(${name} PRIVATE -Wno-error)
    endif()
    # Two of Highway's targets, AVX2 and none, show every access that the others make: half the time.
    math(EXPR targets "(1 << 7) | (1 << 8) | (1 << 11) | (1 << 12)")  # AVX3_DL, AVX3, SSE4, SSSE3
    target_compile_definitions(${name} PRIVATE HWY_DISABLED_TARGETS=${targets}LL)
  endif()
endfunction()

# Sources of a target are compiled so many at a time: GCC makes code of what a precompiled header has in
# every source anew, which takes 5 s with libtorch's. What is anonymous in two of them must not have the same name.
function(tutti_unity name)
  if(TUTTI_UNITY)
    set_target_properties(${name} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 12)
  endif()
endfunction()

# tutti_library(<name> LAYERS <folder of src> …): all sources of these folders.
function(tutti_library name)
  cmake_parse_arguments(ARG "" "" "LAYERS" ${ARGN})
  set(sources)
  foreach(layer IN LISTS ARG_LAYERS)
    file(GLOB found CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/${layer}/*.cpp)
    list(APPEND sources ${found})
  endforeach()
  add_library(${name} STATIC ${sources})
  tutti_own_target(${name})
  tutti_unity(${name})
  target_include_directories(${name}
    PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include> $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>
    PRIVATE ${PROJECT_SOURCE_DIR}/src)
endfunction()

# tutti_tests(<name> SOURCES … LIBRARIES … [LABEL quick]): one executable, each of its tests known to ctest. Those that
# tests/night.cmake names in ${name}_night are labelled `night`: script/night runs them, script/test does not.
function(tutti_tests name)
  cmake_parse_arguments(ARG "" "TIMEOUT;LABEL" "SOURCES;LIBRARIES" ${ARGN})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 120)
  endif()
  add_executable(${name} ${ARG_SOURCES})
  tutti_own_target(${name} TEST)
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR}/tests)
  target_link_libraries(${name} PRIVATE ${ARG_LIBRARIES} GTest::gmock GTest::gtest_main)
  # A card is hidden: CUDA, which torch::manual_seed() starts where it sees one, works in no process forked afterwards.
  set(properties TIMEOUT ${ARG_TIMEOUT} ENVIRONMENT "CUDA_VISIBLE_DEVICES=")
  set(filter "*")
  if(${name}_night)
    list(JOIN ${name}_night ":" night)
    gtest_discover_tests(${name} TEST_PREFIX "${name}." DISCOVERY_TIMEOUT 120 NO_PRETTY_VALUES
                         TEST_FILTER "${night}" TEST_LIST ${name}_night_list
                         PROPERTIES ${properties} LABELS night)
    set(filter "-${night}")
  endif()
  if(ARG_LABEL)
    list(APPEND properties LABELS ${ARG_LABEL})
  endif()
  gtest_discover_tests(${name} TEST_PREFIX "${name}." DISCOVERY_TIMEOUT 120 NO_PRETTY_VALUES TEST_FILTER "${filter}"
                       PROPERTIES ${properties})
endfunction()
