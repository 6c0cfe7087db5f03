# `cmake --install`: headers, libraries, the `tutti` command and the package that find_package(tutti)
# reads. Two export sets, so that a program on the core alone never looks for libtorch.

include(CMakePackageConfigHelpers)

# What has to be built before `cmake --install`: script/demo builds this, and not the tests.
add_custom_target(tutti_installed)

# tutti_install(<target> …): installs it as install(TARGETS) does, where this build has it.
function(tutti_install target)
  if(TARGET ${target})
    install(TARGETS ${target} ${ARGN})
    add_dependencies(tutti_installed ${target})
  endif()
endfunction()

set(package_folder ${CMAKE_INSTALL_LIBDIR}/cmake/tutti)
set(CMAKE_INSTALL_DEFAULT_COMPONENT_NAME development)

if(TUTTI_TORCH)
  install(DIRECTORY include/tutti DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
else()
  install(DIRECTORY include/tutti DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
          PATTERN averaged_parallel.h EXCLUDE PATTERN data_parallel.h EXCLUDE PATTERN distributed_sampler.h EXCLUDE
          PATTERN link.h EXCLUDE PATTERN load_weights.h EXCLUDE PATTERN local_device.h EXCLUDE PATTERN loss_scaler.h EXCLUDE PATTERN named_module.h EXCLUDE PATTERN ops.h EXCLUDE PATTERN partial.h EXCLUDE
          PATTERN parallel_cross_entropy.h EXCLUDE PATTERN split_module.h EXCLUDE
          PATTERN parallel_embedding.h EXCLUDE PATTERN parallel_linear.h EXCLUDE PATTERN pipeline.h EXCLUDE
          PATTERN recompute.h EXCLUDE
          PATTERN recompute_sequential.h EXCLUDE PATTERN recurrent.h EXCLUDE PATTERN shard_index.h EXCLUDE
          PATTERN split_tensors.h EXCLUDE PATTERN sum_engine.h EXCLUDE PATTERN sync_batch_norm.h EXCLUDE
          PATTERN shard_loader.h EXCLUDE PATTERN tensorboard.h EXCLUDE PATTERN tensors.h EXCLUDE
          PATTERN torch_optimizer.h EXCLUDE PATTERN trainer.h EXCLUDE
          PATTERN trainer_options.h EXCLUDE PATTERN tutti.h EXCLUDE)
endif()
install(FILES LICENSE README.md CHANGELOG.md DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT command)
install(DIRECTORY docs examples DESTINATION ${CMAKE_INSTALL_DOCDIR})
tutti_install(tutti_core EXPORT tutti-core-targets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
tutti_install(tutti_mpi EXPORT tutti-core-targets LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(EXPORT tutti-core-targets NAMESPACE tutti:: DESTINATION ${package_folder})
if(TUTTI_TORCH)
  tutti_install(tutti_torch EXPORT tutti-torch-targets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
  tutti_install(tutti_c10d EXPORT tutti-torch-targets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
  install(EXPORT tutti-torch-targets NAMESPACE tutti:: DESTINATION ${package_folder})
endif()
tutti_install(tutti_command RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT command)
tutti_install(tutti_export_torch RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})

# For builds without CMake. The prefix is known when it is installed, which need not be where CMake thought.
install(CODE "set(CMAKE_INSTALL_LIBDIR \"${CMAKE_INSTALL_LIBDIR}\")
  set(CMAKE_INSTALL_INCLUDEDIR \"${CMAKE_INSTALL_INCLUDEDIR}\")
  set(PROJECT_VERSION \"${PROJECT_VERSION}\")
  get_filename_component(CMAKE_INSTALL_PREFIX \"\${CMAKE_INSTALL_PREFIX}\" ABSOLUTE)
  configure_file(\"${PROJECT_SOURCE_DIR}/cmake/tutti-core.pc.in\" \"${PROJECT_BINARY_DIR}/tutti-core.pc\" @ONLY)")
install(FILES ${PROJECT_BINARY_DIR}/tutti-core.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)

configure_package_config_file(cmake/tutti-config.cmake.in ${PROJECT_BINARY_DIR}/tutti-config.cmake
                              INSTALL_DESTINATION ${package_folder})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/tutti-config-version.cmake
                                 COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/tutti-config.cmake ${PROJECT_BINARY_DIR}/tutti-config-version.cmake
              cmake/TuttiDependencies.cmake cmake/TuttiCpuHalf.cmake
        DESTINATION ${package_folder})
