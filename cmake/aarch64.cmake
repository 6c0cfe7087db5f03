# Cross-compiles for 64-bit ARM with Debian's compiler and packages of that architecture; what is built runs under
# qemu-user. script/arm installs all of it.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(CMAKE_LIBRARY_ARCHITECTURE aarch64-linux-gnu)
set(ENV{PKG_CONFIG_LIBDIR} /usr/lib/aarch64-linux-gnu/pkgconfig:/usr/share/pkgconfig)
find_program(qemu qemu-aarch64 REQUIRED)
set(CMAKE_CROSSCOMPILING_EMULATOR ${qemu})
