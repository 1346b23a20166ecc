# How kernels are built, ours and yours: libraries on PyTorch's stable ABI.
#
#   include(<package>/cmake/TorchgraftKernels.cmake)
#   torchgraft_add_kernels(mypackage CPU softplus.cpp CUDA softplus.cu)
#
# adds the targets `mypackage_cpu` and, if CUDA libraries are built, `mypackage_cuda`: the libraries of those names that
# `torchgraft.native.load("mypackage", directory)` finds.
#
# CUDA libraries are built if PyTorch was built with CUDA and there is a CUDA compiler, and for the GPUs of this machine.
# The option TORCHGRAFT_CUDA, or else the environment variable of that name, says it otherwise:
#
#   0     no CUDA libraries
#   1     CUDA libraries, beside any PyTorch; for all supported GPUs if this machine has none
#   all   CUDA libraries for all supported GPUs, as a wheel for other machines needs
#
# CMAKE_CUDA_ARCHITECTURES, or else the environment variable CUDAARCHS, names other GPUs.
#
# Nothing of PyTorch is needed but its headers, so one build serves every Python and every PyTorch from 2.11 on. Each
# library names libtorch as a dependency through an empty stand-in with its soname: PyTorch's own libraries are not
# global, and without that entry the dynamic linker would not look into them.
#
# To be included after project(), which must enable CXX.
include_guard(GLOBAL)

set(TORCHGRAFT_CUDA "" CACHE STRING "Build CUDA libraries: 0, 1, or all for all supported GPUs; empty: as PyTorch is")
option(TORCHGRAFT_WERROR "Treat warnings in kernels as errors" OFF)
option(TORCHGRAFT_NATIVE "Compile CPU kernels for this machine's processor alone: the libraries are not to travel" OFF)
set(TORCHGRAFT_SANITIZER "" CACHE STRING
    "Build CPU libraries with 'address' (and undefined behaviour) or 'thread' sanitizer, or to count lines: 'coverage'")

if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release)
endif()

set(_torchgraft_cmake "${CMAKE_CURRENT_LIST_DIR}")
cmake_path(GET _torchgraft_cmake PARENT_PATH _torchgraft_package)

find_package(Python COMPONENTS Interpreter REQUIRED)
execute_process(
  COMMAND "${Python_EXECUTABLE}" "${_torchgraft_cmake}/torch_headers.py"
  OUTPUT_VARIABLE _torchgraft_torch_include OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
message(STATUS "PyTorch headers: ${_torchgraft_torch_include}")

# The architectures of this machine's GPUs; nothing if there is none, or if one of them is not supported.
function(_torchgraft_find_gpus result)
  set(${result} "" PARENT_SCOPE)
  execute_process(COMMAND nvidia-smi --query-gpu=compute_cap --format=csv,noheader
                  OUTPUT_VARIABLE printed ERROR_QUIET RESULT_VARIABLE status)
  if(NOT status EQUAL 0)
    return()
  endif()
  execute_process(COMMAND "${CMAKE_CUDA_COMPILER}" --list-gpu-code OUTPUT_VARIABLE known ERROR_QUIET)
  string(REGEX MATCHALL "[0-9]+\\.[0-9]+" capabilities "${printed}")
  list(REMOVE_DUPLICATES capabilities)
  foreach(capability IN LISTS capabilities)
    string(REPLACE "." "" number "${capability}")
    if(number LESS 75 OR NOT "${known}\n" MATCHES "sm_${number}\n")
      message(STATUS "torchgraft: a GPU of compute capability ${capability} is none that this CUDA compiler supports")
      return()
    endif()
    list(APPEND found ${number}-real)
  endforeach()
  set(${result} "${found}" PARENT_SCOPE)
endfunction()

set(_torchgraft_builds_cuda OFF)
set(_torchgraft_asked "${TORCHGRAFT_CUDA}")
if(_torchgraft_asked STREQUAL "")
  # Read anew each time, so that a build folder of an earlier build does not decide.
  set(_torchgraft_asked "$ENV{TORCHGRAFT_CUDA}")
endif()
string(TOUPPER "${_torchgraft_asked}" _torchgraft_asked)
if(_torchgraft_asked STREQUAL "")
  if(_torchgraft_torch_include)
    cmake_path(GET _torchgraft_torch_include PARENT_PATH _torchgraft_torch)
  endif()
  if(EXISTS "${_torchgraft_torch}/lib/libtorch_cuda.so")
    set(_torchgraft_builds_cuda ON)
  else()
    message(STATUS "torchgraft: no CUDA library, as ${_torchgraft_torch} was built without CUDA. "
                   "TORCHGRAFT_CUDA=1 builds one.")
  endif()
elseif(_torchgraft_asked MATCHES "^(1|ON|TRUE|ALL)$")
  set(_torchgraft_builds_cuda ON)
elseif(NOT _torchgraft_asked MATCHES "^(0|OFF|FALSE)$")
  message(FATAL_ERROR "TORCHGRAFT_CUDA must be 0, 1 or all, got '${_torchgraft_asked}'")
endif()

if(_torchgraft_builds_cuda)
  # The first CMake that knows how nvcc is asked for C++20.
  if(CMAKE_VERSION VERSION_LESS 3.25.2)
    message(FATAL_ERROR "torchgraft: CUDA kernels need CMake 3.25.2 or newer, and ${CMAKE_COMMAND} is "
                        "${CMAKE_VERSION}. Run pip install 'cmake>=3.25.2', or build without CUDA: TORCHGRAFT_CUDA=0")
  endif()
  include(CheckLanguage)
  check_language(CUDA)
  if(CMAKE_CUDA_COMPILER)
    if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
      set(CMAKE_CUDA_ARCHITECTURES "$ENV{CUDAARCHS}")
      if(NOT CMAKE_CUDA_ARCHITECTURES AND NOT _torchgraft_asked STREQUAL "ALL")
        _torchgraft_find_gpus(CMAKE_CUDA_ARCHITECTURES)
      endif()
      if(NOT CMAKE_CUDA_ARCHITECTURES)
        set(CMAKE_CUDA_ARCHITECTURES 75-real 80-real 90-real 100-real 120)
        if(NOT _torchgraft_asked STREQUAL "ALL")
          message(STATUS "torchgraft: there is no GPU here to compile for, so all supported architectures are compiled, "
                         "which takes several times as long. CUDAARCHS=90-real names one")
        endif()
      endif()
    endif()
    message(STATUS "torchgraft: CUDA kernels are compiled for ${CMAKE_CUDA_ARCHITECTURES}")
    enable_language(CUDA)
  elseif(_torchgraft_asked)
    message(FATAL_ERROR "torchgraft: there is no CUDA compiler, and TORCHGRAFT_CUDA asks for CUDA libraries. Install the "
                        "CUDA toolkit and put nvcc on PATH, or name it in the environment variable CUDACXX")
  else()
    set(_torchgraft_builds_cuda OFF)
    message(STATUS "torchgraft: no CUDA compiler (nvcc) found, building the CPU library only. "
                   "Install the CUDA toolkit and build again for the CUDA library.")
  endif()
endif()

# An empty library with the soname of one of PyTorch's own.
function(_torchgraft_add_stand_in name)
  if(TARGET ${name})
    return()
  endif()
  set(source "${CMAKE_BINARY_DIR}/stand_in/${name}.cpp")
  file(CONFIGURE OUTPUT "${source}" CONTENT "")
  add_library(${name} SHARED "${source}")
  set_target_properties(${name} PROPERTIES LIBRARY_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/stand_in")
endfunction()

# The folder that holds all of some sources.
function(_torchgraft_find_root result)
  set(root "")
  foreach(source IN LISTS ARGN)
    cmake_path(ABSOLUTE_PATH source BASE_DIRECTORY "${CMAKE_CURRENT_SOURCE_DIR}" NORMALIZE)
    if(NOT root)
      cmake_path(GET source PARENT_PATH root)
    endif()
    cmake_path(IS_PREFIX root "${source}" holds)
    while(NOT holds)
      cmake_path(GET root PARENT_PATH root)
      cmake_path(IS_PREFIX root "${source}" holds)
    endwhile()
  endforeach()
  set(${result} "${root}" PARENT_SCOPE)
endfunction()

# What the libraries for all devices share.
function(_torchgraft_add_library target)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "SOURCES;STAND_INS")
  add_library(${target} MODULE ${arg_SOURCES})
  # No path of the build machine in the library: PyTorch is found because it is loaded already.
  # DEFINE_SYMBOL: no macro is named after the target, as GCC passes over a compiled header that knows another macro.
  set_target_properties(${target} PROPERTIES
    PREFIX "" DEFINE_SYMBOL "" SKIP_BUILD_RPATH ON INSTALL_RPATH ""
    CXX_STANDARD 20 CXX_STANDARD_REQUIRED ON CXX_EXTENSIONS OFF
    CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON)
  target_include_directories(${target} PRIVATE "${_torchgraft_package}/include")
  target_include_directories(${target} SYSTEM PRIVATE "${_torchgraft_torch_include}")
  # 2.11: a header that is not stable since then is a compile error.
  target_compile_definitions(${target} PRIVATE TORCH_TARGET_VERSION=0x020b000000000000ULL)
  target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra>)
  if(TORCHGRAFT_WERROR)
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-Werror>)
  endif()
  # Errors name the source by __FILE__. Where it lay on the build machine is cut off: libraries travel.
  # nvcc divides what it hands on at spaces and commas, but for what is quoted twice.
  _torchgraft_find_root(root ${arg_SOURCES})
  foreach(folder IN ITEMS "${root}" "${_torchgraft_package}/include" "${_torchgraft_torch_include}")
    set(option "-fmacro-prefix-map=${folder}/=")
    target_compile_options(${target} PRIVATE
      "$<$<COMPILE_LANGUAGE:CXX>:${option}>" "$<$<COMPILE_LANGUAGE:CUDA>:SHELL:-Xcompiler '\"${option}\"'>")
  endforeach()
  foreach(name IN LISTS arg_STAND_INS)
    _torchgraft_add_stand_in(${name})
  endforeach()
  target_link_libraries(${target} PRIVATE ${arg_STAND_INS})
  if(APPLE)
    target_link_options(${target} PRIVATE -undefined dynamic_lookup)
  else()
    # The version script: nothing is exported but what tools ask (torchgraft/allocation.h, choice.h and precision.py).
    # What a library holds it registers as it is loaded.
    # The soname: by it a C++ program that is linked with the library finds it.
    target_link_options(${target} PRIVATE -Wl,--no-as-needed "-Wl,-soname,${target}.so"
                        "-Wl,--version-script=${_torchgraft_cmake}/exports.map")
    set_property(TARGET ${target} APPEND PROPERTY LINK_DEPENDS "${_torchgraft_cmake}/exports.map")
  endif()
endfunction()

# Instrumented, and in one version, as the resolvers of several would run before a sanitizer does: for the least of
# processors, or with TORCHGRAFT_NATIVE for this machine's, of which all code may then use all instructions.
# `sources`: how many the library has.
function(_torchgraft_sanitize target sources)
  set(optimized -O1)
  set(level "")
  if(TORCHGRAFT_NATIVE)
    _torchgraft_find_level(level)
  endif()
  if(TORCHGRAFT_SANITIZER STREQUAL "address")
    set(flags -fsanitize=address,undefined -fno-sanitize=vptr -fno-sanitize-recover=all)
    # What is asked of each pointer takes three times as long to compile as all else, and AddressSanitizer sees what a
    # pointer reads: of large libraries it is left out.
    if(sources GREATER_EQUAL 4)
      list(APPEND flags -fno-sanitize=null,alignment,object-size,pointer-overflow)
    endif()
    target_compile_definitions(${target} PRIVATE _GLIBCXX_ASSERTIONS)
  elseif(TORCHGRAFT_SANITIZER STREQUAL "thread")
    set(flags -fsanitize=thread)
    target_compile_definitions(${target} PRIVATE TORCHGRAFT_STD_THREADS)
  elseif(TORCHGRAFT_SANITIZER STREQUAL "coverage")
    # By several threads; and of a function that is inlined each place would be counted by itself.
    set(flags --coverage -fprofile-update=atomic)
    set(optimized -O1 -fno-inline -DTORCHGRAFT_INLINE=inline)
  else()
    message(FATAL_ERROR
            "TORCHGRAFT_SANITIZER must be 'address', 'thread' or 'coverage', got '${TORCHGRAFT_SANITIZER}'")
  endif()
  if(level)
    target_compile_definitions(${target} PRIVATE TORCHGRAFT_X86_64_LEVEL=${level})
    list(APPEND flags -march=x86-64-v${level})
  else()
    target_compile_definitions(${target} PRIVATE TORCHGRAFT_NO_CLONES)
  endif()
  # Between what samples have in float32 and in float64: both ways are asked.
  target_compile_definitions(${target} PRIVATE TORCHGRAFT_STREAMED_BYTES=180224)
  target_compile_options(${target} PRIVATE ${flags} ${optimized} -g1 -fno-omit-frame-pointer)
  target_link_options(${target} PRIVATE ${flags})
endfunction()

# The level of x86-64 whose kernels the dynamic linker would pick on this machine (see torchgraft/cpu.h): 4, 3, or
# nothing where that is not known.
function(_torchgraft_find_level result)
  set(${result} "" PARENT_SCOPE)
  if(NOT EXISTS /proc/cpuinfo)
    return()
  endif()
  file(STRINGS /proc/cpuinfo flags REGEX "^flags" LIMIT_COUNT 1)
  separate_arguments(flags)
  set(level_3 avx avx2 bmi1 bmi2 f16c fma abm movbe)
  set(level_4 ${level_3} avx512f avx512bw avx512cd avx512dq avx512vl)
  foreach(level IN ITEMS 4 3)
    list(REMOVE_ITEM level_${level} ${flags})
    if(NOT level_${level})
      set(${result} ${level} PARENT_SCOPE)
      return()
    endif()
  endforeach()
endfunction()

# torchgraft_add_kernels(<namespace> [CPU <sources>...] [CUDA <sources>...] [SCHEMAS <source>])
#
# The namespace is that of the operators in `torch.ops`. SCHEMAS makes the library `<namespace>_schemas`, which defines
# the operators in C++ programs without Python; torchgraft.authoring.cpp writes its source.
function(torchgraft_add_kernels namespace)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "SCHEMAS" "CPU;CUDA")
  if(arg_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR
            "torchgraft_add_kernels: sources come after CPU, CUDA or SCHEMAS, got ${arg_UNPARSED_ARGUMENTS}")
  endif()

  if(arg_SCHEMAS AND NOT TORCHGRAFT_SANITIZER)
    _torchgraft_add_library(${namespace}_schemas SOURCES ${arg_SCHEMAS} STAND_INS torch_cpu)
  endif()

  if(arg_CPU)
    _torchgraft_add_library(${namespace}_cpu SOURCES ${arg_CPU} STAND_INS torch_cpu)
    # A kernel's sums may be reordered where its source says so (`#pragma omp simd`), and nowhere else.
    target_compile_options(${namespace}_cpu PRIVATE -O3 -fopenmp-simd -ffp-contract=fast -fno-math-errno
                           -fno-trapping-math)
    # PyTorch's headers take two seconds to read: of some sources once, compiled.
    list(LENGTH arg_CPU sources)
    if(sources GREATER_EQUAL 4)
      target_precompile_headers(${namespace}_cpu PRIVATE <torchgraft/registration.h>)
    endif()
    # Compiled by one build (TORCHGRAFT_PRECOMPILE names a header), found by others: sources that begin with the header
    # find it in this folder before the header itself.
    if(TORCHGRAFT_PRECOMPILE)
      target_precompile_headers(${namespace}_cpu PRIVATE <${TORCHGRAFT_PRECOMPILE}>)
    elseif(TORCHGRAFT_PRECOMPILED)
      target_include_directories(${namespace}_cpu BEFORE PRIVATE "${TORCHGRAFT_PRECOMPILED}")
    endif()
    if(TORCHGRAFT_SANITIZER)
      _torchgraft_sanitize(${namespace}_cpu ${sources})
    elseif(TORCHGRAFT_NATIVE)
      _torchgraft_find_level(level)
      if(level)
        target_compile_definitions(${namespace}_cpu PRIVATE TORCHGRAFT_X86_64_LEVEL=${level})
      endif()
    endif()
  endif()

  if(arg_CUDA AND _torchgraft_builds_cuda)
    _torchgraft_add_library(${namespace}_cuda SOURCES ${arg_CUDA} STAND_INS torch_cpu torch_cuda)
    target_compile_definitions(${namespace}_cuda PRIVATE USE_CUDA)
    # -t 0: architectures are compiled side by side. 20012, 20013, 20014, 20015: noise from annotations in PyTorch's
    # headers.
    target_compile_options(${namespace}_cuda PRIVATE -O3 --expt-relaxed-constexpr --compress-mode=size -t 0
                           -Xcompiler=-Wall,-Wextra -diag-suppress=20012,20013,20014,20015)
    if(TORCHGRAFT_WERROR)
      target_compile_options(${namespace}_cuda PRIVATE --Werror all-warnings)
    endif()
    set_target_properties(${namespace}_cuda PROPERTIES
      CUDA_STANDARD 20 CUDA_STANDARD_REQUIRED ON CUDA_RUNTIME_LIBRARY Static CUDA_VISIBILITY_PRESET hidden)
  endif()
endfunction()
