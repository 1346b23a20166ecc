# Of find_package(torchgraft <version>): until 1.0 a program takes the minor version that it was written for.
file(STRINGS "${CMAKE_CURRENT_LIST_DIR}/../version.py" _torchgraft_line REGEX "^__version__")
string(REGEX REPLACE "^.*\"([0-9.]+).*$" "\\1" PACKAGE_VERSION "${_torchgraft_line}")
include("${CMAKE_CURRENT_LIST_DIR}/TorchgraftVersion.cmake")
