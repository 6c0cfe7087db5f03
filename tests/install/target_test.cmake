# cmake -DBUILD=<folder> -DNINJA=<program> -P: the target tutti_installed makes every file that
# `cmake --install` takes from the build, so that script/demo, which builds no tests, can be installed.
cmake_minimum_required(VERSION 3.25)
file(STRINGS ${BUILD}/cmake_install.cmake rules REGEX "TYPE (STATIC_LIBRARY|SHARED_LIBRARY|EXECUTABLE) ")
execute_process(COMMAND ${NINJA} -C ${BUILD} -t query tutti_installed OUTPUT_VARIABLE made
                COMMAND_ERROR_IS_FATAL ANY)
string(REGEX REPLACE "[ \n]+" ";" made "${made}")
set(count 0)
foreach(rule IN LISTS rules)
  string(REGEX REPLACE ".*\"${BUILD}/([^\"]*)\".*" "\\1" file "${rule}")
  if(NOT file IN_LIST made)
    message(SEND_ERROR "${file} is installed, and tutti_installed does not make it")
  endif()
  math(EXPR count "${count} + 1")
endforeach()
if(count LESS 2)
  message(FATAL_ERROR "${count} files are installed from ${BUILD}: this test does not read its rules")
endif()
