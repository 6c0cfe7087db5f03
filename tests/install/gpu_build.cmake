# cmake -DTORCH=… -DFOLDER=… -P: makes in FOLDER what CMake sees of a build of libtorch for GPUs, of the one in TORCH:
# libtorch_cuda is there, and its own CMake file fails without a CUDA toolkit.
file(REMOVE_RECURSE ${FOLDER})
file(MAKE_DIRECTORY ${FOLDER}/lib ${FOLDER}/share/cmake/Torch)
file(GLOB libraries ${TORCH}/lib/*)
foreach(library IN LISTS libraries)
  get_filename_component(name ${library} NAME)
  file(CREATE_LINK ${library} ${FOLDER}/lib/${name} SYMBOLIC)
endforeach()
file(CREATE_LINK ${TORCH}/include ${FOLDER}/include SYMBOLIC)
file(TOUCH ${FOLDER}/lib/libtorch_cuda.so)
file(WRITE ${FOLDER}/share/cmake/Torch/TorchConfig.cmake "message(FATAL_ERROR \"there is no CUDA toolkit\")\n")
