# Compiler flags for every target of the project.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/bin")
set(CMAKE_LIBRARY_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/lib")

# Installed programs find libflashstep.so beside them and LibTorch where the build found it.
include(GNUInstallDirs)
set(CMAKE_INSTALL_RPATH "$ORIGIN/../${CMAKE_INSTALL_LIBDIR}")
set(CMAKE_INSTALL_RPATH_USE_LINK_PATH ON)
set(CMAKE_BUILD_RPATH_USE_ORIGIN ON)

# One -fPIC for library, tests and program, so that all of them share the precompiled torch header.
add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-fPIC>
                    "$<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;-Wno-unknown-pragmas>")
if(FLASHSTEP_WERROR)
  # GCC 12 warns of overlaps in std::string that cannot be (its bug 105651).
  add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-Werror> $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-restrict>)
endif()

find_program(CCACHE_PROGRAM ccache)
if(CCACHE_PROGRAM AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  # ccache accepts precompiled headers only with these two relaxations (its manual, "Precompiled headers"). Paths below the
  # sources are taken as relative: what is compiled alike in another preset's folder is not compiled again.
  set(CMAKE_CXX_COMPILER_LAUNCHER env CCACHE_SLOPPINESS=pch_defines,time_macros "CCACHE_BASEDIR=${PROJECT_SOURCE_DIR}"
      ${CCACHE_PROGRAM})
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${CCACHE_PROGRAM})
  add_compile_options($<$<COMPILE_LANG_AND_ID:CXX,GNU>:-fpch-preprocess>)
endif()

if(FLASHSTEP_SANITIZE)
  set(FLASHSTEP_SANITIZE_OPTIONS -fsanitize=${FLASHSTEP_SANITIZE} -fno-omit-frame-pointer -O1
      -g1)  # lines for the reports; all of LibTorch's types take long
  add_link_options(-fsanitize=${FLASHSTEP_SANITIZE})
  if(FLASHSTEP_SANITIZE MATCHES "undefined")
    list(APPEND FLASHSTEP_SANITIZE_OPTIONS -fno-sanitize-recover=undefined -fno-sanitize=vptr)  # vptr needs LibTorch's RTTI
  endif()
  # Instrumented code makes GCC guess about uninitialized values.
  list(APPEND FLASHSTEP_SANITIZE_OPTIONS -Wno-error)
endif()

if(FLASHSTEP_CUDA)
  include(FlashstepCuda)
endif()

# Every test gets these: where the program and the sources are, and how sanitizers treat LibTorch, which
# is not instrumented (the reasons stand in scripts/sanitizers/).
set(FLASHSTEP_TEST_ENVIRONMENT
  "FLASHSTEP_PROGRAM=${CMAKE_RUNTIME_OUTPUT_DIRECTORY}/flashstep" "FLASHSTEP_SOURCE=${PROJECT_SOURCE_DIR}"
  # Tests run side by side: threads that spin while they wait would take the cores from each other.
  "OMP_WAIT_POLICY=PASSIVE")
set(_sanitizers "${PROJECT_SOURCE_DIR}/scripts/sanitizers")
if(FLASHSTEP_SANITIZE MATCHES "address")
  list(APPEND FLASHSTEP_TEST_ENVIRONMENT
    "ASAN_OPTIONS=detect_container_overflow=0:strict_init_order=0"
    "LSAN_OPTIONS=suppressions=${_sanitizers}/leaks.txt:print_suppressions=0"
    "UBSAN_OPTIONS=print_stacktrace=1:suppressions=${_sanitizers}/undefined.txt")
elseif(FLASHSTEP_SANITIZE MATCHES "thread")
  # Of LibTorch's locks the sanitizer sees the taking by a wait, not the release: its table of one thread's 64 locks overflows.
  list(APPEND FLASHSTEP_TEST_ENVIRONMENT "OMP_NUM_THREADS=1"
    "TSAN_OPTIONS=ignore_noninstrumented_modules=1:detect_deadlocks=0:suppressions=${_sanitizers}/threads.txt")
endif()

# The Python that runs the comparisons with PyPI's packages.
set(FLASHSTEP_PYTHON "${PROJECT_SOURCE_DIR}/scripts/python" CACHE FILEPATH "Python of the peer tests")
