# Compiler flags for every target of the project.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/bin")
set(CMAKE_LIBRARY_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/lib")

# One -fPIC for library, tests and program, so that all of them share the precompiled torch header.
add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-fPIC>
                    "$<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;-Werror;-Wno-unknown-pragmas>")

find_program(CCACHE_PROGRAM ccache)
if(CCACHE_PROGRAM AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  # ccache accepts precompiled headers only with these two relaxations (its manual, "Precompiled headers").
  set(CMAKE_CXX_COMPILER_LAUNCHER env CCACHE_SLOPPINESS=pch_defines,time_macros ${CCACHE_PROGRAM})
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${CCACHE_PROGRAM})
  add_compile_options($<$<COMPILE_LANG_AND_ID:CXX,GNU>:-fpch-preprocess>)
endif()

if(FLASHSTEP_SANITIZE)
  add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-fsanitize=${FLASHSTEP_SANITIZE}>
                      $<$<COMPILE_LANGUAGE:CXX>:-fno-omit-frame-pointer>
                      $<$<COMPILE_LANGUAGE:CXX>:-O1>)
  add_link_options(-fsanitize=${FLASHSTEP_SANITIZE})
  if(FLASHSTEP_SANITIZE MATCHES "undefined")
    add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-fno-sanitize-recover=undefined>
                        $<$<COMPILE_LANGUAGE:CXX>:-fno-sanitize=vptr>)  # vptr needs LibTorch's RTTI
  endif()
endif()

# The Python that runs the comparisons with PyPI's packages: scripts/bootstrap makes it, python3 stands in.
set(_cache_home "$ENV{XDG_CACHE_HOME}")
if(NOT _cache_home)
  set(_cache_home "$ENV{HOME}/.cache")
endif()
if(EXISTS "${_cache_home}/flashstep/python/bin/python3")
  set(FLASHSTEP_PYTHON "${_cache_home}/flashstep/python/bin/python3" CACHE FILEPATH "Python of the peer tests")
else()
  set(FLASHSTEP_PYTHON "python3" CACHE FILEPATH "Python of the peer tests")
endif()
