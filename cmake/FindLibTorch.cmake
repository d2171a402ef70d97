# Finds LibTorch without its own CMake package, which demands a CUDA toolkit even for a CPU program.
# FLASHSTEP_LIBTORCH (variable or environment) names its directory; else libtorch_path, which scripts/bootstrap
# asks too, looks for a Python torch 2.11 and in the user's cache.
# Defines LibTorch::cpu (libtorch_cpu and libc10) and, if FLASHSTEP_CUDA, LibTorch::cuda.
set(FLASHSTEP_LIBTORCH "$ENV{FLASHSTEP_LIBTORCH}" CACHE PATH "Directory with LibTorch's lib/ and include/")
if(NOT FLASHSTEP_LIBTORCH)
  find_file(_libtorch_path libtorch_path NO_CACHE REQUIRED NO_DEFAULT_PATH
            PATHS "${CMAKE_CURRENT_LIST_DIR}" "${CMAKE_CURRENT_LIST_DIR}/../scripts")
  execute_process(COMMAND sh "${_libtorch_path}" OUTPUT_VARIABLE _torch_dir OUTPUT_STRIP_TRAILING_WHITESPACE)
  if(_torch_dir)
    set(FLASHSTEP_LIBTORCH "${_torch_dir}" CACHE PATH "Directory with LibTorch's lib/ and include/" FORCE)
  endif()
endif()

find_path(LibTorch_INCLUDE_DIR torch/csrc/api/include/torch/torch.h
          PATHS "${FLASHSTEP_LIBTORCH}/include" NO_DEFAULT_PATH)
find_library(LibTorch_CPU_LIBRARY torch_cpu PATHS "${FLASHSTEP_LIBTORCH}/lib" NO_DEFAULT_PATH)
find_library(LibTorch_C10_LIBRARY c10 PATHS "${FLASHSTEP_LIBTORCH}/lib" NO_DEFAULT_PATH)
mark_as_advanced(LibTorch_INCLUDE_DIR LibTorch_CPU_LIBRARY LibTorch_C10_LIBRARY)
if(LibTorch_INCLUDE_DIR)
  file(STRINGS "${LibTorch_INCLUDE_DIR}/torch/headeronly/version.h" _lines REGEX "define TORCH_VERSION_(MAJOR|MINOR|PATCH) ")
  string(REGEX REPLACE "[^0-9;]" "" _numbers "${_lines}")
  string(REPLACE ";" "." LibTorch_VERSION "${_numbers}")
endif()
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(LibTorch
  REQUIRED_VARS LibTorch_CPU_LIBRARY LibTorch_C10_LIBRARY LibTorch_INCLUDE_DIR
  VERSION_VAR LibTorch_VERSION
  REASON_FAILURE_MESSAGE "run scripts/bootstrap, or point FLASHSTEP_LIBTORCH at a LibTorch 2.11")

if(LibTorch_FOUND AND NOT TARGET LibTorch::cpu)
  add_library(LibTorch::cpu INTERFACE IMPORTED)
  set_target_properties(LibTorch::cpu PROPERTIES
    INTERFACE_INCLUDE_DIRECTORIES "${LibTorch_INCLUDE_DIR};${LibTorch_INCLUDE_DIR}/torch/csrc/api/include"
    INTERFACE_SYSTEM_INCLUDE_DIRECTORIES "${LibTorch_INCLUDE_DIR};${LibTorch_INCLUDE_DIR}/torch/csrc/api/include"
    # --no-as-needed: operators register themselves in static initialisers that nothing references.
    INTERFACE_LINK_LIBRARIES "-Wl,--no-as-needed;${LibTorch_CPU_LIBRARY};${LibTorch_C10_LIBRARY};-Wl,--as-needed"
    # libtorch_cpu.so finds cupti and cudart by its own RPATH; the linker does not look there.
    INTERFACE_LINK_OPTIONS "-Wl,--allow-shlib-undefined")
endif()

if(LibTorch_FOUND AND FLASHSTEP_CUDA AND NOT TARGET LibTorch::cuda)
  find_library(LibTorch_CUDA_LIBRARY torch_cuda PATHS "${FLASHSTEP_LIBTORCH}/lib" NO_DEFAULT_PATH)
  find_library(LibTorch_C10_CUDA_LIBRARY c10_cuda PATHS "${FLASHSTEP_LIBTORCH}/lib" NO_DEFAULT_PATH)
  # The same runtime library that libtorch_cuda.so loads, so that a process has one: beside the wheel
  # (nvidia/cu13), else the toolkit's. The wheel's carries no name without a version.
  find_file(LibTorch_CUDART_LIBRARY NAMES libcudart.so.13 NO_DEFAULT_PATH
            PATHS "${FLASHSTEP_LIBTORCH}/../nvidia/cu13/lib" "${FLASHSTEP_LIBTORCH}/lib"
                  ${CMAKE_CUDA_IMPLICIT_LINK_DIRECTORIES} /usr/local/cuda/lib64)
  find_path(LibTorch_CUDA_INCLUDE_DIR cuda_runtime_api.h NO_DEFAULT_PATH
            PATHS ${CMAKE_CUDA_TOOLKIT_INCLUDE_DIRECTORIES} /usr/local/cuda/include
                  "${FLASHSTEP_LIBTORCH}/../nvidia/cu13/include")
  # LibTorch's headers include cuSPARSE's and others: of the toolkit, beside LibTorch, or fetched alone.
  set(_cache_home "$ENV{XDG_CACHE_HOME}")
  if(NOT _cache_home)
    set(_home "$ENV{HOME}")
    if(NOT _home)
      execute_process(COMMAND sh -c [[getent passwd "$(id -u)" | cut -d: -f6]] OUTPUT_VARIABLE _home
                      OUTPUT_STRIP_TRAILING_WHITESPACE)
    endif()
    set(_cache_home "${_home}/.cache")
  endif()
  find_path(LibTorch_CUDA_LIBRARIES_INCLUDE_DIR cusparse.h NO_DEFAULT_PATH
            PATHS ${CMAKE_CUDA_TOOLKIT_INCLUDE_DIRECTORIES} /usr/local/cuda/include
                  "${FLASHSTEP_LIBTORCH}/../nvidia/cu13/include" "${_cache_home}/flashstep/cuda_headers")
  if(NOT LibTorch_CUDA_LIBRARY OR NOT LibTorch_CUDART_LIBRARY OR NOT LibTorch_CUDA_INCLUDE_DIR
     OR NOT LibTorch_CUDA_LIBRARIES_INCLUDE_DIR)
    message(FATAL_ERROR "expected the CUDA LibTorch with libcudart.so.13, and the headers of CUDA's libraries, got ${FLASHSTEP_LIBTORCH}; run scripts/bootstrap --cuda")
  endif()
  add_library(LibTorch::cuda INTERFACE IMPORTED)
  set_target_properties(LibTorch::cuda PROPERTIES
    INTERFACE_INCLUDE_DIRECTORIES "${LibTorch_CUDA_INCLUDE_DIR};${LibTorch_CUDA_LIBRARIES_INCLUDE_DIR}"
    INTERFACE_SYSTEM_INCLUDE_DIRECTORIES "${LibTorch_CUDA_INCLUDE_DIR};${LibTorch_CUDA_LIBRARIES_INCLUDE_DIR}"
    INTERFACE_LINK_LIBRARIES
      "LibTorch::cpu;-Wl,--no-as-needed;${LibTorch_CUDA_LIBRARY};${LibTorch_C10_CUDA_LIBRARY};${LibTorch_CUDART_LIBRARY};-Wl,--as-needed")
endif()
