# Finds LibTorch without its own CMake package, which demands a CUDA toolkit even for a CPU program.
# Looks in FLASHSTEP_LIBTORCH (variable or environment), then in an importable Python torch 2.11, then in
# the user's cache where scripts/bootstrap unpacks the wheel. Defines LibTorch::cpu and LibTorch::cuda.
set(_cache_home "$ENV{XDG_CACHE_HOME}")
if(NOT _cache_home)
  set(_cache_home "$ENV{HOME}/.cache")
endif()
set(FLASHSTEP_LIBTORCH "$ENV{FLASHSTEP_LIBTORCH}" CACHE PATH "Directory with LibTorch's lib/ and include/")
if(NOT FLASHSTEP_LIBTORCH)
  find_program(_python python3)
  if(_python)
    execute_process(COMMAND ${_python} -c "import importlib.util,os;s=importlib.util.find_spec('torch');d=os.path.dirname(s.origin) if s and s.origin else '';v=open(os.path.join(d,'version.py')).read() if d else '';print(d if \"'2.11.\" in v else '',end='')"
                    OUTPUT_VARIABLE _torch_dir ERROR_QUIET)
  endif()
  if(NOT _torch_dir)
    set(_torch_dir "${_cache_home}/flashstep/libtorch-2.11.0/torch")
  endif()
  set(FLASHSTEP_LIBTORCH "${_torch_dir}" CACHE PATH "Directory with LibTorch's lib/ and include/" FORCE)
endif()

find_path(LibTorch_INCLUDE_DIR torch/csrc/api/include/torch/torch.h
          PATHS "${FLASHSTEP_LIBTORCH}/include" NO_DEFAULT_PATH)
find_library(LibTorch_CPU_LIBRARY torch_cpu PATHS "${FLASHSTEP_LIBTORCH}/lib" NO_DEFAULT_PATH)
find_library(LibTorch_C10_LIBRARY c10 PATHS "${FLASHSTEP_LIBTORCH}/lib" NO_DEFAULT_PATH)
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
    INTERFACE_LINK_OPTIONS "-Wl,-rpath,${FLASHSTEP_LIBTORCH}/lib;-Wl,--allow-shlib-undefined")
endif()
