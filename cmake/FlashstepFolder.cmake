# flashstep_folder(NAME [TORCH] [TWINS file...] [LIBRARIES target...])
# Declares the room in the current folder and its subfolders: every .cc (and, with FLASHSTEP_CUDA, .cu) becomes part of
# libflashstep, every x_bench.cc a benchmark named NAME_x_bench. All x_test.cc are one program, NAME_tests, which ctest
# runs file by file as NAME_x_test; all x_gpu_test.cc are another, NAME_gpu_tests, of a build with CUDA. Twins (a present
# and an absent version of the same functions, such as png.cc and no_png.cc) are left out unless they stand behind TWINS.
#   TORCH      the folder includes torch headers: the large ones are precompiled once for all such folders, and
#              the files that include none of those are compiled without
#   LIBRARIES  third-party targets the folder needs

# What is precompiled: LibTorch's modules, optimizers and operators. Not torch/torch.h nor torch/nn.h, which no file of ours
# includes (tests/layering_test): GCC instantiates the templates that a precompiled header uses anew in every file, and
# those of every module take 4 to 15 s a file.
set(FLASHSTEP_PRECOMPILED torch/nn/module.h torch/nn/pimpl.h torch/optim/adamw.h torch/types.h torch/utils.h)

# What takes a file to the precompiled headers; and to CUDA's, so that it differs in a build with CUDA.
set(FLASHSTEP_TORCH_INCLUDES "<(torch/|ATen/ATen.h)")
set(FLASHSTEP_CUDA_INCLUDES "<(nccl.h|cuda_runtime|(c10|ATen|torch/csrc)/cuda|.*ProcessGroupNCCL)")

# Tests of half a minute and more on two cores: `make test` leaves them out, .ci/run runs them too (label long).
set(FLASHSTEP_LONG_TESTS
  comm_group_faults_test hosts_test kill_test launch_train_test others_files_test parallel_flat_shards_edges_test
  parallel_flat_shards_test parallel_gradient_reducer_test rank_kills_test profile_account_program_test
  python_handout_test python_inductor_test python_install_test bench_single_program_test bench_parallel_program_test bench_exit_codes_test
  report_quick_test
  safetensors_interop_test sentences_test signals_test tokenizer_peers_test tokenizer_program_test train_cli_test train_data_cli_test
  train_parallel_train_test)

add_custom_target(gpu_tests)  # all tests that only a build with CUDA has

include(FlashstepTogether)  # flashstep_together(): several files of a room compiled as one

# Code that calls LibTorch, writes reports or tests waits for kernels that are compiled elsewhere. A call of attention() on 16
# rows takes as long as with -O2, to 1 % (attention_call_bench).
set(FLASHSTEP_QUICKLY_COMPILED $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<NOT:$<CONFIG:Debug>>>:-O1>)

# Sets RESULT to YES when FILE includes a header that matches PATTERN, itself or through a header of ours. KEY names the pattern.
function(flashstep_includes FILE KEY PATTERN RESULT)
  set(known "FLASHSTEP_INCLUDES_${KEY}_${FILE}")
  get_property(answer GLOBAL PROPERTY "${known}")
  if("${answer}" STREQUAL "")
    set_property(GLOBAL PROPERTY "${known}" NO)  # while it is being found out
    set(answer NO)
    file(STRINGS "${FILE}" includes REGEX "^[ \t]*#[ \t]*include")
    foreach(line IN LISTS includes)
      if(line MATCHES "${PATTERN}")
        set(answer YES)
      elseif(line MATCHES "\"((flashstep|apps|tests)/[^\"]+)\"" AND EXISTS "${PROJECT_SOURCE_DIR}/${CMAKE_MATCH_1}")
        flashstep_includes("${PROJECT_SOURCE_DIR}/${CMAKE_MATCH_1}" ${KEY} "${PATTERN}" below)
        if(below)
          set(answer YES)
        endif()
      endif()
      if(answer)
        break()
      endif()
    endforeach()
    set_property(GLOBAL PROPERTY "${known}" ${answer})
  endif()
  set(${RESULT} ${answer} PARENT_SCOPE)
endfunction()

# Compiles TARGET with the sanitizers that are asked for. The address sanitizer sees the library's accesses, to the tests'
# memory too: the tests' objects are those of the plain build. The thread sanitizer has to see both sides of a race.
function(flashstep_sanitize TARGET)
  if(FLASHSTEP_SANITIZE)
    target_compile_options(${TARGET} PRIVATE ${FLASHSTEP_SANITIZE_OPTIONS})
    set_target_properties(${TARGET} PROPERTIES FLASHSTEP_SANITIZED YES)
  endif()
endfunction()

# Sets RESULT to the target whose precompiled headers TARGET uses: of its own, so that no room's options are in them.
function(flashstep_precompile TARGET RESULT)
  get_target_property(sanitized ${TARGET} FLASHSTEP_SANITIZED)
  set(precompiled flashstep_precompiled)
  if(sanitized)
    set(precompiled flashstep_precompiled_sanitized)
  endif()
  set(${RESULT} ${precompiled} PARENT_SCOPE)
  if(TARGET ${precompiled})
    return()
  endif()
  file(CONFIGURE OUTPUT "${PROJECT_BINARY_DIR}/precompiled.cc" CONTENT "")
  add_library(${precompiled} OBJECT "${PROJECT_BINARY_DIR}/precompiled.cc")
  target_include_directories(${precompiled} PRIVATE "${PROJECT_SOURCE_DIR}")
  target_link_libraries(${precompiled} PRIVATE LibTorch::cpu)
  target_compile_options(${precompiled} PRIVATE -fopenmp)
  if(sanitized)
    flashstep_sanitize(${precompiled})
  endif()
  list(TRANSFORM FLASHSTEP_PRECOMPILED REPLACE "(.+)" "<\\1$<ANGLE-R>" OUTPUT_VARIABLE headers)
  target_precompile_headers(${precompiled} PRIVATE ${headers})
endfunction()

# Compiles and links TARGET with LibTorch. Its large headers are precompiled once for all targets; reading that
# takes seconds too, so that files without such a header go without.
function(flashstep_use_torch TARGET)
  # Without -fopenmp at::parallel_for, which is a template in LibTorch's headers, runs on one thread.
  target_link_libraries(${TARGET} PRIVATE LibTorch::cpu)
  target_compile_options(${TARGET} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-fopenmp>)
  target_link_options(${TARGET} PRIVATE -fopenmp)
  flashstep_precompile(${TARGET} precompiled)
  target_precompile_headers(${TARGET} REUSE_FROM ${precompiled})
  get_target_property(sources ${TARGET} SOURCES)
  foreach(source IN LISTS sources)
    get_filename_component(path "${source}" ABSOLUTE)
    if(NOT EXISTS "${path}")
      continue()
    endif()
    flashstep_includes("${path}" TORCH "${FLASHSTEP_TORCH_INCLUDES}" torch)
    if(torch)
      set_property(SOURCE "${source}" APPEND PROPERTY COMPILE_OPTIONS ${FLASHSTEP_QUICKLY_COMPILED})
    else()
      set_source_files_properties("${source}" PROPERTIES SKIP_PRECOMPILE_HEADERS ON)
    endif()
    # CUDA's headers for the files that want them: the objects of all others are those of a build without CUDA.
    if(FLASHSTEP_CUDA AND source MATCHES "\\.cc$")
      flashstep_includes("${path}" CUDA "${FLASHSTEP_CUDA_INCLUDES}" cuda)
      if(cuda)
        set_property(SOURCE "${source}" APPEND PROPERTY COMPILE_OPTIONS
          "-isystem${LibTorch_CUDA_INCLUDE_DIR}" "-isystem${LibTorch_CUDA_LIBRARIES_INCLUDE_DIR}")
      endif()
    endif()
  endforeach()
endfunction()

function(flashstep_folder NAME)
  cmake_parse_arguments(ARG "TORCH" "" "TWINS;LIBRARIES" ${ARGN})
  file(GLOB_RECURSE all_sources CONFIGURE_DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/*.cc")
  if(FLASHSTEP_CUDA)
    file(GLOB_RECURSE device_sources CONFIGURE_DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/*.cu")
    list(APPEND all_sources ${device_sources})
  endif()
  set(sources "")
  set(tests "")
  set(benches "")
  foreach(source IN LISTS all_sources)
    get_filename_component(stem ${source} NAME_WE)
    get_filename_component(folder ${source} DIRECTORY)
    string(REGEX REPLACE "^no_" "" present ${stem})
    if(stem MATCHES "_test$")
      list(APPEND tests ${source})
    elseif(stem MATCHES "_bench$")
      list(APPEND benches ${source})
    elseif(EXISTS "${folder}/no_${present}.cc")
      get_filename_component(file_name ${source} NAME)
      if(file_name IN_LIST ARG_TWINS)
        list(APPEND sources ${source})
      endif()
    else()
      list(APPEND sources ${source})
    endif()
  endforeach()

  flashstep_together(sources "${ARG_TWINS}" room joined)
  add_library(flashstep_${NAME} OBJECT ${sources})
  target_include_directories(flashstep_${NAME} PRIVATE "${PROJECT_SOURCE_DIR}")
  target_link_libraries(flashstep_${NAME} PRIVATE ${ARG_LIBRARIES} Threads::Threads)
  flashstep_sanitize(flashstep_${NAME})
  if(ARG_TORCH)
    flashstep_use_torch(flashstep_${NAME})
  endif()
  flashstep_alone(flashstep_${NAME} "${joined}")
  set_property(GLOBAL APPEND PROPERTY FLASHSTEP_ROOMS flashstep_${NAME})
  set_property(GLOBAL APPEND PROPERTY FLASHSTEP_LIBRARIES ${ARG_LIBRARIES})

  set(torch "")
  if(ARG_TORCH)
    set(torch TORCH)
  endif()
  foreach(bench IN LISTS benches)
    get_filename_component(stem ${bench} NAME_WE)
    flashstep_bench(${NAME}_${stem} ${torch} SOURCES ${bench} LIBRARIES ${ARG_LIBRARIES})
  endforeach()
  if(FLASHSTEP_TESTS)
    set(files ${tests})
    list(FILTER files EXCLUDE REGEX "_gpu_test\\.cc$")
    if(files)
      flashstep_tests(${NAME} ${torch} SOURCES ${files} LIBRARIES ${ARG_LIBRARIES})
    endif()
    list(FILTER tests INCLUDE REGEX "_gpu_test\\.cc$")
    if(FLASHSTEP_CUDA AND tests)
      flashstep_tests(${NAME} ${torch} GPU SOURCES ${tests} LIBRARIES ${ARG_LIBRARIES} LibTorch::cuda)
    endif()
  endif()
endfunction()

# flashstep_embed(ROOM HEADER FUNCTION FILE...)
# Compiles text files of the current folder into ROOM. FUNCTION, which HEADER declares, gives the text as a string_view; of
# several files their names and texts, as pairs.
function(flashstep_embed ROOM HEADER FUNCTION)
  set(content "std::string_view ${FUNCTION}() { return ")
  if(ARGC GREATER 4)
    set(content "std::vector<std::pair<std::string, std::string_view>> ${FUNCTION}() { return {")
  endif()
  foreach(file IN LISTS ARGN)
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/${file}")
    file(READ "${file}" text)
    get_filename_component(name "${file}" NAME)
    if(ARGC GREATER 4)
      string(APPEND content "\n{\"${name}\", R\"text(${text})text\"},")
    else()
      string(APPEND content "R\"text(${text})text\"")
    endif()
  endforeach()
  if(ARGC GREATER 4)
    string(APPEND content "}")
  endif()
  set(source "${CMAKE_CURRENT_BINARY_DIR}/${FUNCTION}.cc")
  string(CONCAT content "// Made of text files by the build.\n#include \"${HEADER}\"\n\nnamespace flashstep::tools {\n\n"
    "${content}; }\n\n}  // namespace flashstep::tools\n")
  file(CONFIGURE OUTPUT "${source}" CONTENT "@content@" @ONLY)  # written only where it differs
  target_sources(flashstep_${ROOM} PRIVATE "${source}")
  set_source_files_properties("${source}" PROPERTIES SKIP_PRECOMPILE_HEADERS ON)
endfunction()

# flashstep_test_program(NAME [TORCH] SOURCES file... [LIBRARIES target...])
# A googletest program; how it is called stands in tests/main.cc.
function(flashstep_test_program NAME)
  cmake_parse_arguments(ARG "TORCH" "" "SOURCES;LIBRARIES" ${ARGN})
  if(NOT TARGET flashstep_test_main)
    add_library(flashstep_test_main OBJECT "${PROJECT_SOURCE_DIR}/tests/main.cc")
    target_include_directories(flashstep_test_main PRIVATE "${PROJECT_SOURCE_DIR}")
    target_link_libraries(flashstep_test_main PUBLIC GTest::gtest)
  endif()
  add_executable(${NAME} ${ARG_SOURCES})
  target_include_directories(${NAME} PRIVATE "${PROJECT_SOURCE_DIR}")
  target_link_libraries(${NAME} PRIVATE flashstep $<TARGET_NAME_IF_EXISTS:flashstep_tools> flashstep_test_main ${ARG_LIBRARIES})
  target_compile_options(${NAME} PRIVATE ${FLASHSTEP_QUICKLY_COMPILED})
  if(FLASHSTEP_SANITIZE MATCHES "thread")
    flashstep_sanitize(${NAME})
  endif()
  if(ARG_TORCH)
    flashstep_use_torch(${NAME})
  endif()
endfunction()

# flashstep_add_test(NAME COMMAND word... [LABELS label...])
# What every test of ours has in ctest.
function(flashstep_add_test NAME)
  cmake_parse_arguments(ARG "" "" "COMMAND;LABELS" ${ARGN})
  if(NAME IN_LIST FLASHSTEP_LONG_TESTS)
    list(APPEND ARG_LABELS long)
  endif()
  add_test(NAME ${NAME} COMMAND ${ARG_COMMAND})
  set_tests_properties(${NAME} PROPERTIES LABELS "${ARG_LABELS}" TIMEOUT 600 SKIP_RETURN_CODE 77
    ENVIRONMENT "${FLASHSTEP_TEST_ENVIRONMENT}")
endfunction()

# flashstep_test(NAME [TORCH] SOURCES file... [LIBRARIES target...] [LABELS label...])
# One googletest program, registered with ctest under the same name.
function(flashstep_test NAME)
  cmake_parse_arguments(ARG "" "" "SOURCES;LIBRARIES;LABELS" ${ARGN})
  flashstep_test_program(${NAME} ${ARG_UNPARSED_ARGUMENTS} SOURCES ${ARG_SOURCES} LIBRARIES ${ARG_LIBRARIES})
  flashstep_add_test(${NAME} COMMAND ${NAME} LABELS ${ARG_LABELS})
endfunction()

# flashstep_tests(ROOM [TORCH] [GPU] SOURCES x_test.cc... [LIBRARIES target...])
# The tests of a room: one program, ROOM_tests or with GPU ROOM_gpu_tests, compiled in groups as the room is; ctest knows
# each file as ROOM_x_test.
function(flashstep_tests ROOM)
  cmake_parse_arguments(ARG "TORCH;GPU" "" "SOURCES;LIBRARIES" ${ARGN})
  set(kind tests)
  set(labels "")
  if(ARG_GPU)
    set(kind gpu_tests)
    set(labels LABELS gpu)
  endif()
  set(torch "")
  if(ARG_TORCH)
    set(torch TORCH)
  endif()
  set(sources ${ARG_SOURCES})
  flashstep_together(sources "" ${kind} joined)
  flashstep_test_program(${ROOM}_${kind} ${torch} SOURCES ${sources} LIBRARIES ${ARG_LIBRARIES})
  flashstep_alone(${ROOM}_${kind} "${joined}")
  foreach(file IN LISTS ARG_SOURCES)
    get_filename_component(name ${file} NAME)
    get_filename_component(stem ${file} NAME_WE)
    flashstep_add_test(${ROOM}_${stem} COMMAND ${ROOM}_${kind} --file=${name} ${labels})
  endforeach()
  if(ARG_GPU)
    add_dependencies(gpu_tests ${ROOM}_gpu_tests)
  endif()
endfunction()

# flashstep_bench(NAME [TORCH] SOURCES file... [LIBRARIES target...])
# A program that measures; built by the target `benchmarks` only, run by scripts/bench.
function(flashstep_bench NAME)
  cmake_parse_arguments(ARG "TORCH" "" "SOURCES;LIBRARIES" ${ARGN})
  add_executable(${NAME} EXCLUDE_FROM_ALL ${ARG_SOURCES})
  target_include_directories(${NAME} PRIVATE "${PROJECT_SOURCE_DIR}")
  target_link_libraries(${NAME} PRIVATE flashstep $<TARGET_NAME_IF_EXISTS:flashstep_tools> ${ARG_LIBRARIES})
  if(ARG_TORCH)
    flashstep_use_torch(${NAME})
  endif()
  add_dependencies(benchmarks ${NAME})
endfunction()

# flashstep_python_test(NAME SCRIPT [LABELS label...])
# A Python script that holds our files against other people's readers. It exits with 77, and one sentence,
# when a package that it needs is not there: ctest then says SKIPPED.
function(flashstep_python_test NAME SCRIPT)
  cmake_parse_arguments(ARG "" "" "LABELS" ${ARGN})
  if(NAME IN_LIST FLASHSTEP_LONG_TESTS)
    list(APPEND ARG_LABELS long)
  endif()
  add_test(NAME ${NAME} COMMAND ${FLASHSTEP_PYTHON} ${CMAKE_CURRENT_SOURCE_DIR}/${SCRIPT})
  set_tests_properties(${NAME} PROPERTIES LABELS "python;${ARG_LABELS}" TIMEOUT 600 SKIP_RETURN_CODE 77
    ENVIRONMENT "${FLASHSTEP_TEST_ENVIRONMENT};PYTHONDONTWRITEBYTECODE=1;PYTHONPATH=${PROJECT_SOURCE_DIR}/flashstep/testing")
endfunction()
