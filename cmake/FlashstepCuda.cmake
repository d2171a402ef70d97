# The CUDA language: which compiler, for which cards, with which flags.
# nvcc: CMAKE_CUDA_COMPILER, else what scripts/nvcc_path finds.
if(NOT CMAKE_CUDA_COMPILER)
  execute_process(COMMAND sh "${PROJECT_SOURCE_DIR}/scripts/nvcc_path" OUTPUT_VARIABLE _nvcc ERROR_VARIABLE _why
                  OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_STRIP_TRAILING_WHITESPACE)
  if(NOT _nvcc)
    if(NOT _why)
      set(_why "expected an nvcc of CUDA 13, found none: run scripts/bootstrap --cuda")
    endif()
    message(FATAL_ERROR "${_why}")
  endif()
  set(CMAKE_CUDA_COMPILER "${_nvcc}" CACHE FILEPATH "The CUDA compiler")
endif()
# libcudart comes from LibTorch::cuda, so that a process has one; nvcc adds none of its own.
set(CMAKE_CUDA_RUNTIME_LIBRARY None)
# CMake would name the architectures in the short form, in which wgmma does not assemble.
set(CMAKE_CUDA_ARCHITECTURES OFF)
enable_language(CUDA)
# Debian's CMake 3.25 does not know that nvcc takes C++20.
set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")

# The cards here; without any, Ampere and Hopper. 90 becomes 90a: wgmma and TMA are there only by that name.
set(_present "")
execute_process(COMMAND nvidia-smi --query-gpu=compute_cap --format=csv,noheader
                OUTPUT_VARIABLE _capabilities ERROR_QUIET RESULT_VARIABLE _no_gpu)
if(_no_gpu EQUAL 0)
  string(REGEX MATCHALL "[0-9]+\\.[0-9]+" _capabilities "${_capabilities}")
  foreach(capability IN LISTS _capabilities)
    string(REPLACE "." "" capability ${capability})
    list(APPEND _present ${capability})
  endforeach()
  list(REMOVE_DUPLICATES _present)
  list(TRANSFORM _present REPLACE "^90$" "90a")
endif()
if(NOT _present)
  set(_present 80 90a)
endif()
set(FLASHSTEP_CUDA_ARCHITECTURES "${_present}" CACHE STRING "Compute capabilities to build for: 80;86;89;90a;100a;120a")

foreach(architecture IN LISTS FLASHSTEP_CUDA_ARCHITECTURES)
  if(architecture MATCHES "a$")  # code for this card only
    set(code "sm_${architecture}")
  else()                         # and for later cards, as PTX
    set(code "[sm_${architecture},compute_${architecture}]")
  endif()
  add_compile_options("$<$<COMPILE_LANGUAGE:CUDA>:SHELL:-gencode arch=compute_${architecture},code=${code}>")
endforeach()
add_compile_options("$<$<COMPILE_LANGUAGE:CUDA>:SHELL:-Xcompiler -fPIC,-Wall,-Wextra>"
                    $<$<COMPILE_LANGUAGE:CUDA>:-lineinfo>
                    $<$<COMPILE_LANGUAGE:CUDA>:--expt-relaxed-constexpr>)
if(FLASHSTEP_WERROR)
  add_compile_options("$<$<COMPILE_LANGUAGE:CUDA>:SHELL:--Werror all-warnings -Xcompiler=-Werror>")
endif()
