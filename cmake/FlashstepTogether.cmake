# Files that are compiled together. Most of what a file takes is the same for all files of a room: the precompiled
# LibTorch, whose pending templates GCC instantiates anew at the end of each (2.75 s), nlohmann::json, the room's own
# headers. Of five files together it is paid once: a whole build takes half the time. In return a change compiles its
# four neighbours too; -DFLASHSTEP_TOGETHER=OFF is for days of small changes.
#
# A name in an anonymous namespace is therefore one of its room, not of its file alone: two files do not give it to two
# things, nor take one that a header of the room has. The preset tsan and the target `alone` compile every file by
# itself, so that each includes what it needs.

option(FLASHSTEP_TOGETHER "Compile the files of a room in groups" ON)
set(FLASHSTEP_TOGETHER_MOST 5)  # more would save little, and keep a core waiting at the end

# Sets RESULT to YES when FILE may be compiled with others: a source of ours without options of its own that is the same
# file whether there is CUDA or not (a build that is configured anew with CUDA compiles only what differs), and that
# neither is a TWIN, nor defines macros, which would reach the next file, nor picks its instructions itself (Highway
# includes such files many times). Tests of GPUs (WHAT is gpu_tests) are in builds with CUDA only.
function(flashstep_may_join FILE TWINS WHAT RESULT)
  set(${RESULT} NO PARENT_SCOPE)
  get_filename_component(name "${FILE}" NAME)
  get_source_file_property(options "${FILE}" COMPILE_OPTIONS)
  get_source_file_property(include_directories "${FILE}" INCLUDE_DIRECTORIES)
  if(NOT name MATCHES "\\.cc$" OR name IN_LIST TWINS OR options OR include_directories)
    return()
  endif()
  file(STRINGS "${FILE}" macros REGEX "^[ \t]*#[ \t]*define")
  if(macros)
    return()
  endif()
  flashstep_includes("${FILE}" CUDA "${FLASHSTEP_CUDA_INCLUDES}" cuda)
  flashstep_includes("${FILE}" HIGHWAY "<hwy/" highway)
  if(NOT highway AND (NOT cuda OR WHAT STREQUAL "gpu_tests"))
    set(${RESULT} YES PARENT_SCOPE)
  endif()
endfunction()

# Of the list named SOURCES, replaces those that may be compiled together by files that include them, neighbours in
# the alphabet in groups of equal size: those with torch headers and those without, apart. WHAT tells their files from
# other lists' of the folder. Sets JOINED to what was replaced.
function(flashstep_together SOURCES TWINS WHAT JOINED)
  set(left "")
  set(joined "")
  set(torch_files "")
  set(plain_files "")
  foreach(source IN LISTS ${SOURCES})
    set(join NO)
    if(FLASHSTEP_TOGETHER)
      flashstep_may_join("${source}" "${TWINS}" ${WHAT} join)
    endif()
    if(NOT join)
      list(APPEND left "${source}")
      continue()
    endif()
    list(APPEND joined "${source}")
    flashstep_includes("${source}" TORCH "${FLASHSTEP_TORCH_INCLUDES}" torch)
    if(torch)
      list(APPEND torch_files "${source}")
    else()
      list(APPEND plain_files "${source}")
    endif()
  endforeach()
  foreach(kind torch plain)
    list(LENGTH ${kind}_files count)
    math(EXPR groups "(${count} + ${FLASHSTEP_TOGETHER_MOST} - 1) / ${FLASHSTEP_TOGETHER_MOST}")
    set(begin 0)
    foreach(group RANGE 1 ${groups})
      if(groups EQUAL 0)
        break()
      endif()
      math(EXPR end "${count} * ${group} / ${groups}")
      math(EXPR length "${end} - ${begin}")
      list(SUBLIST ${kind}_files ${begin} ${length} files)
      set(begin ${end})
      list(TRANSFORM files REPLACE "^${PROJECT_SOURCE_DIR}/(.+)$" "#include \"\\1\"\n" OUTPUT_VARIABLE includes)
      list(JOIN includes "" content)
      set(together "${CMAKE_CURRENT_BINARY_DIR}/together/${WHAT}_${kind}_${group}.cc")
      file(CONFIGURE OUTPUT "${together}" CONTENT "${content}" @ONLY)
      list(APPEND left "${together}")
    endforeach()
  endforeach()
  set(${SOURCES} "${left}" PARENT_SCOPE)
  set(${JOINED} "${joined}" PARENT_SCOPE)
endfunction()

# The FILES that TARGET compiles in groups, each by itself with the target's options: built by the target `alone` only,
# and in compile_commands.json, where editors look for them.
function(flashstep_alone TARGET FILES)
  if(NOT FILES)
    return()
  endif()
  add_library(${TARGET}_alone OBJECT EXCLUDE_FROM_ALL ${FILES})
  foreach(kind INCLUDE_DIRECTORIES COMPILE_OPTIONS COMPILE_DEFINITIONS LINK_LIBRARIES)
    set_target_properties(${TARGET}_alone PROPERTIES ${kind} "$<TARGET_PROPERTY:${TARGET},${kind}>")
  endforeach()
  add_dependencies(alone ${TARGET}_alone)
endfunction()
