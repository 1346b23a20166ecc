# find_package(torchgraft): the libraries of torchgraft's operators, for C++ programs without Python.
#
#   find_package(torchgraft 0.1 REQUIRED COMPONENTS schemas cpu)
#   target_link_libraries(serve PRIVATE torchgraft::schemas torchgraft::cpu)
#
#   torchgraft::schemas   defines the operators
#   torchgraft::cpu       their kernels for the CPU
#   torchgraft::cuda      their kernels for CUDA, where this torchgraft has them
#   torchgraft::headers   torchgraft/operators.h, which calls them, and torchgraft/package.h; the others bring it along
#   torchgraft::torch     PyTorch's own headers and libraries; the others bring it along
#
# `python -m torchgraft --cmake-path` prints the folder for CMAKE_PREFIX_PATH.
include("${CMAKE_CURRENT_LIST_DIR}/TorchgraftPackage.cmake")
torchgraft_import(torchgraft "${CMAKE_CURRENT_LIST_DIR}/..")
