# flashstep_folder(NAME [TORCH] [TWINS file...] [LIBRARIES target...])
# Declares the room in the current folder: every .cc becomes part of libflashstep, every x_test.cc a test
# program of its own named NAME_x_test. Twins (a present and an absent version of the same functions, such
# as png.cc and no_png.cc) are left out unless they stand behind TWINS.
#   TORCH      the folder includes torch headers: they are precompiled once for all such folders
#   LIBRARIES  third-party targets the folder needs
set(FLASHSTEP_TORCH_PCH "" CACHE INTERNAL "")

function(flashstep_use_torch TARGET)
  # Without -fopenmp at::parallel_for, which is a template in LibTorch's headers, runs on one thread.
  target_link_libraries(${TARGET} PRIVATE LibTorch::cpu OpenMP::OpenMP_CXX)
  if(NOT FLASHSTEP_TORCH_PCH)
    set(FLASHSTEP_TORCH_PCH ${TARGET} CACHE INTERNAL "")
    target_precompile_headers(${TARGET} PRIVATE <torch/torch.h>)
  else()
    target_precompile_headers(${TARGET} REUSE_FROM ${FLASHSTEP_TORCH_PCH})
  endif()
endfunction()

function(flashstep_folder NAME)
  cmake_parse_arguments(ARG "TORCH" "" "TWINS;LIBRARIES" ${ARGN})
  file(GLOB all_sources CONFIGURE_DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/*.cc")
  set(sources "")
  set(tests "")
  foreach(source IN LISTS all_sources)
    get_filename_component(stem ${source} NAME_WE)
    string(REGEX REPLACE "^no_" "" present ${stem})
    if(stem MATCHES "_test$")
      list(APPEND tests ${source})
    elseif(EXISTS "${CMAKE_CURRENT_SOURCE_DIR}/no_${present}.cc")
      if("${stem}.cc" IN_LIST ARG_TWINS)
        list(APPEND sources ${source})
      endif()
    else()
      list(APPEND sources ${source})
    endif()
  endforeach()

  add_library(flashstep_${NAME} OBJECT ${sources})
  target_include_directories(flashstep_${NAME} PRIVATE "${PROJECT_SOURCE_DIR}")
  target_link_libraries(flashstep_${NAME} PRIVATE ${ARG_LIBRARIES} Threads::Threads)
  if(ARG_TORCH)
    flashstep_use_torch(flashstep_${NAME})
  endif()
  set_property(GLOBAL APPEND PROPERTY FLASHSTEP_ROOMS flashstep_${NAME})
  set_property(GLOBAL APPEND PROPERTY FLASHSTEP_LIBRARIES ${ARG_LIBRARIES})

  if(FLASHSTEP_TESTS)
    foreach(test IN LISTS tests)
      get_filename_component(stem ${test} NAME_WE)
      set(torch "")
      if(ARG_TORCH)
        set(torch TORCH)
      endif()
      flashstep_test(${NAME}_${stem} ${torch} SOURCES ${test} LIBRARIES ${ARG_LIBRARIES})
    endforeach()
  endif()
endfunction()

# flashstep_test(NAME [TORCH] SOURCES file... [LIBRARIES target...] [LABELS label...] [ARGUMENTS arg...])
# One googletest program, registered with ctest under the same name.
function(flashstep_test NAME)
  cmake_parse_arguments(ARG "TORCH" "" "SOURCES;LIBRARIES;LABELS;ARGUMENTS" ${ARGN})
  add_executable(${NAME} ${ARG_SOURCES})
  target_include_directories(${NAME} PRIVATE "${PROJECT_SOURCE_DIR}")
  target_link_libraries(${NAME} PRIVATE flashstep GTest::gtest_main ${ARG_LIBRARIES})
  if(ARG_TORCH)
    flashstep_use_torch(${NAME})
  endif()
  add_test(NAME ${NAME} COMMAND ${NAME} ${ARG_ARGUMENTS})
  set_tests_properties(${NAME} PROPERTIES LABELS "${ARG_LABELS}" TIMEOUT 300
    ENVIRONMENT "${FLASHSTEP_TEST_ENVIRONMENT}")
endfunction()

# flashstep_python_test(NAME SCRIPT [LABELS label...])
# A Python script that holds our files against other people's readers. It exits with 77, and one sentence,
# when a package that it needs is not there: ctest then says SKIPPED.
function(flashstep_python_test NAME SCRIPT)
  cmake_parse_arguments(ARG "" "" "LABELS" ${ARGN})
  add_test(NAME ${NAME} COMMAND ${FLASHSTEP_PYTHON} ${CMAKE_CURRENT_SOURCE_DIR}/${SCRIPT})
  set_tests_properties(${NAME} PROPERTIES LABELS "python;${ARG_LABELS}" TIMEOUT 300 SKIP_RETURN_CODE 77
    ENVIRONMENT "${FLASHSTEP_TEST_ENVIRONMENT};PYTHONDONTWRITEBYTECODE=1")
endfunction()
