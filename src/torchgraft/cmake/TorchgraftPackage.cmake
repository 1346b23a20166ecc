# What find_package does for torchgraft, and for a package that its tools made: imports libraries that lie in a folder.
include_guard(GLOBAL)
# How `file(REAL_PATH)` takes `..` behind a link; a project that asks for an older CMake would be warned.
if(POLICY CMP0152)
  cmake_policy(SET CMP0152 NEW)
endif()

set(_torchgraft_root "${CMAKE_CURRENT_LIST_DIR}/..")
cmake_path(NORMAL_PATH _torchgraft_root)
set(TORCHGRAFT_TORCH "" CACHE PATH "PyTorch's own folder: that of an unpacked libtorch, or `torch` in site-packages")

# The folder of PyTorch: the named one, then that of find_package(Torch), then one on CMAKE_PREFIX_PATH, as an unpacked
# libtorch or what torch.utils.cmake_prefix_path says, then that beside torchgraft, then what Python finds.
function(_torchgraft_find_torch result)
  set(candidates "${TORCHGRAFT_TORCH}" "${TORCH_INSTALL_PREFIX}")
  foreach(name IN ITEMS Torch_DIR Torch_ROOT)
    if(${name})
      list(APPEND candidates "${${name}}" "${${name}}/../../..")
    endif()
  endforeach()
  set(prefixes ${CMAKE_PREFIX_PATH})
  if(DEFINED ENV{CMAKE_PREFIX_PATH})
    string(REPLACE ":" ";" from_environment "$ENV{CMAKE_PREFIX_PATH}")
    list(APPEND prefixes ${from_environment})
  endif()
  foreach(prefix IN LISTS prefixes)
    list(APPEND candidates "${prefix}" "${prefix}/torch" "${prefix}/../..")
  endforeach()
  list(APPEND candidates "${_torchgraft_root}/../torch" FROM_PYTHON)
  foreach(candidate IN LISTS candidates)
    if(candidate STREQUAL "FROM_PYTHON")
      set(candidate "")
      find_program(TORCHGRAFT_PYTHON NAMES python3 python)
      if(TORCHGRAFT_PYTHON)
        execute_process(COMMAND "${TORCHGRAFT_PYTHON}" "${_torchgraft_root}/cmake/torch_headers.py"
                        OUTPUT_VARIABLE candidate OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
        string(APPEND candidate "/..")
      endif()
    endif()
    if(EXISTS "${candidate}/include/torch/csrc/stable/library.h" AND EXISTS "${candidate}/lib/libtorch_cpu.so")
      file(REAL_PATH "${candidate}" candidate)
      set(${result} "${candidate}" PARENT_SCOPE)
      return()
    endif()
  endforeach()
  set(${result} "" PARENT_SCOPE)
endfunction()

# Adds to an interface target a library that is to be loaded though the program names nothing of it: what it holds it
# registers as it is loaded. The file's folder is where the program looks for it, until it is installed elsewhere.
function(_torchgraft_link target file)
  string(MAKE_C_IDENTIFIER "_torchgraft_file_${file}" imported)
  if(NOT TARGET ${imported})
    add_library(${imported} SHARED IMPORTED GLOBAL)
    set_target_properties(${imported} PROPERTIES IMPORTED_LOCATION "${file}")
  endif()
  # In one word: CMake would put each flag once, wherever it stands.
  set_property(TARGET ${target} APPEND PROPERTY INTERFACE_LINK_LIBRARIES
               "-Wl,--push-state,--no-as-needed,${file},--pop-state" ${imported})
endfunction()

# torchgraft::torch: PyTorch's headers and libraries. find_package(Torch) is not needed, which asks for a CUDA toolkit
# where PyTorch was built with one.
macro(_torchgraft_add_torch)
  _torchgraft_find_torch(_torchgraft_torch)
  if(NOT TARGET torchgraft::torch)
    if(NOT _torchgraft_torch)
      set(${CMAKE_FIND_PACKAGE_NAME}_NOT_FOUND_MESSAGE
          "it needs PyTorch 2.11 or later: put an unpacked libtorch on CMAKE_PREFIX_PATH, or set TORCHGRAFT_TORCH")
      set(${CMAKE_FIND_PACKAGE_NAME}_FOUND FALSE)
      return()
    endif()
    file(STRINGS "${_torchgraft_torch}/share/cmake/Torch/TorchConfigVersion.cmake" _torchgraft_line
         REGEX "set\\(PACKAGE_VERSION ")
    string(REGEX MATCH "[0-9]+\\.[0-9]+\\.[0-9]+" torchgraft_torch_VERSION "${_torchgraft_line}")
    if(torchgraft_torch_VERSION VERSION_LESS "2.11")
      set(${CMAKE_FIND_PACKAGE_NAME}_NOT_FOUND_MESSAGE
          "it needs PyTorch 2.11 or later, and ${_torchgraft_torch} is ${torchgraft_torch_VERSION}")
      set(${CMAKE_FIND_PACKAGE_NAME}_FOUND FALSE)
      return()
    endif()
    message(STATUS "torchgraft: PyTorch ${torchgraft_torch_VERSION} in ${_torchgraft_torch}")
    add_library(torchgraft::torch INTERFACE IMPORTED GLOBAL)
    target_include_directories(torchgraft::torch SYSTEM INTERFACE
                               "${_torchgraft_torch}/include" "${_torchgraft_torch}/include/torch/csrc/api/include")
    target_compile_features(torchgraft::torch INTERFACE cxx_std_20)
    # PyTorch finds the libraries of CUDA by itself, when the program runs.
    target_link_options(torchgraft::torch INTERFACE -Wl,--allow-shlib-undefined)
    foreach(_torchgraft_name IN ITEMS torch torch_cpu c10 torch_cuda c10_cuda)
      if(EXISTS "${_torchgraft_torch}/lib/lib${_torchgraft_name}.so")
        _torchgraft_link(torchgraft::torch "${_torchgraft_torch}/lib/lib${_torchgraft_name}.so")
      endif()
    endforeach()
    set_property(TARGET torchgraft::torch APPEND PROPERTY INTERFACE_LINK_LIBRARIES ${CMAKE_DL_LIBS})
    add_library(torchgraft::headers INTERFACE IMPORTED GLOBAL)
    target_include_directories(torchgraft::headers INTERFACE "${_torchgraft_root}/include")
    target_link_libraries(torchgraft::headers INTERFACE torchgraft::torch)
  endif()
endmacro()

# torchgraft_import(<namespace> <folder of the package>): the targets <namespace>::schemas, ::cpu and ::cuda of the
# libraries in its folder `lib`, and ::headers.
macro(torchgraft_import namespace folder)
  _torchgraft_add_torch()
  if(NOT TARGET ${namespace}::headers)
    add_library(${namespace}::headers INTERFACE IMPORTED GLOBAL)
    target_include_directories(${namespace}::headers INTERFACE "${folder}/include")
    target_link_libraries(${namespace}::headers INTERFACE torchgraft::headers)
  endif()
  set(${CMAKE_FIND_PACKAGE_NAME}_headers_FOUND TRUE)
  foreach(_torchgraft_kind IN ITEMS schemas cpu cuda)
    set(_torchgraft_file "${folder}/lib/${namespace}_${_torchgraft_kind}.so")
    # Kernels for CUDA load only beside a PyTorch that was built with it.
    if(EXISTS "${_torchgraft_file}"
       AND (EXISTS "${_torchgraft_torch}/lib/libtorch_cuda.so" OR NOT _torchgraft_kind STREQUAL "cuda"))
      file(REAL_PATH "${_torchgraft_file}" _torchgraft_file)
      if(NOT TARGET ${namespace}::${_torchgraft_kind})
        add_library(${namespace}::${_torchgraft_kind} INTERFACE IMPORTED GLOBAL)
        target_link_libraries(${namespace}::${_torchgraft_kind} INTERFACE ${namespace}::headers)
        _torchgraft_link(${namespace}::${_torchgraft_kind} "${_torchgraft_file}")
      endif()
      set(${CMAKE_FIND_PACKAGE_NAME}_${_torchgraft_kind}_FOUND TRUE)
    endif()
  endforeach()
  foreach(_torchgraft_kind IN LISTS ${CMAKE_FIND_PACKAGE_NAME}_FIND_COMPONENTS)
    if(${CMAKE_FIND_PACKAGE_NAME}_FIND_REQUIRED_${_torchgraft_kind}
       AND NOT ${CMAKE_FIND_PACKAGE_NAME}_${_torchgraft_kind}_FOUND)
      set(${CMAKE_FIND_PACKAGE_NAME}_FOUND FALSE)
      set(${CMAKE_FIND_PACKAGE_NAME}_NOT_FOUND_MESSAGE
          "there is no ${namespace}_${_torchgraft_kind}.so in ${folder}/lib, or PyTorch was built without CUDA")
    endif()
  endforeach()
endmacro()
