# `cpack --config build/CPackConfig.cmake`: packages for Debian and Ubuntu of what is installed, "tutti", the command, and
# "libtutti-dev", headers and libraries for programs. libtorch is in neither: it comes from where programs have it.

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME tutti)
set(CPACK_PACKAGE_VERSION ${PROJECT_VERSION})
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY ${PROJECT_DESCRIPTION})
set(CPACK_RESOURCE_FILE_LICENSE ${PROJECT_SOURCE_DIR}/LICENSE)
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_THREADS 0)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_MAINTAINER "The engineers of Tutti <tutti@localhost>")
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_COMPONENTS_ALL command development)

set(CPACK_DEBIAN_COMMAND_PACKAGE_NAME tutti)
set(CPACK_DEBIAN_COMMAND_PACKAGE_SECTION science)
set(CPACK_DEBIAN_COMMAND_PACKAGE_SHLIBDEPS ON)
set(CPACK_COMPONENT_COMMAND_DESCRIPTION "starts and watches the workers of programs on Tutti, on one host or several.")

set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_NAME libtutti-dev)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_SECTION libdevel)
# The static libraries' own, as tutti_find_core_dependencies() has them; those of libtorch are libtorch's.
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_DEPENDS
    "tutti (= ${PROJECT_VERSION}), libfmt-dev, libspdlog-dev, libssl-dev, pkg-config, libhwy-dev, libxxhash-dev")
set(CPACK_COMPONENT_DEVELOPMENT_DESCRIPTION
    "headers, static libraries and CMake's package: distributed training with libtorch.")
if(TUTTI_TORCH)
  string(APPEND CPACK_COMPONENT_DEVELOPMENT_DESCRIPTION " Made with libtorch ${Torch_VERSION}, which programs need too.")
endif()
include(CPack)
