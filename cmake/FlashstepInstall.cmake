# cmake --install: the program, the libraries, the public headers, and a CMake package that finds the same LibTorch without
# any hint: find_package(flashstep) defines flashstep::flashstep and flashstep::tools.
include(CMakePackageConfigHelpers)
set(_package_dir "${CMAKE_INSTALL_LIBDIR}/cmake/flashstep")

install(TARGETS flashstep flashstep_tools EXPORT flashstep LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}"
        INCLUDES DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}")
install(TARGETS flashstep_program RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}")
# What users include, and what that needs.
foreach(folder flashstep flashstep/detail)
  file(GLOB headers CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/${folder}/*.h")
  install(FILES ${headers} DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}/${folder}")
endforeach()
include(FlashstepForwarding)
flashstep_install_forwarding("${CMAKE_INSTALL_INCLUDEDIR}")
install(FILES "${PROJECT_SOURCE_DIR}/LICENSE" "${PROJECT_SOURCE_DIR}/README.md" DESTINATION "${CMAKE_INSTALL_DOCDIR}")
install(DIRECTORY "${PROJECT_SOURCE_DIR}/docs" "${PROJECT_SOURCE_DIR}/examples" DESTINATION "${CMAKE_INSTALL_DOCDIR}"
        USE_SOURCE_PERMISSIONS PATTERN "CMakeLists.txt" EXCLUDE)  # that one builds the tests of this tree
install(DIRECTORY "${PROJECT_SOURCE_DIR}/configs" DESTINATION "${CMAKE_INSTALL_DATADIR}/flashstep" OPTIONAL)
install(EXPORT flashstep NAMESPACE flashstep:: DESTINATION "${_package_dir}" FILE flashstepTargets.cmake)
install(FILES "${PROJECT_SOURCE_DIR}/cmake/FindLibTorch.cmake" "${PROJECT_SOURCE_DIR}/scripts/libtorch_path"
        DESTINATION "${_package_dir}")

# What is installed for all must be able to load LibTorch from where it lies.
install(CODE "
  execute_process(COMMAND sh -c [[
    folder=$1
    while [ \"$folder\" != / ] && [ \"$folder\" != . ]; do
      case $(stat -c %A \"$folder\") in *x|*t) ;; *) echo \"$folder\"; exit ;; esac
      folder=$(dirname \"$folder\")
    done]] sh \"${FLASHSTEP_LIBTORCH}\" OUTPUT_VARIABLE closed OUTPUT_STRIP_TRAILING_WHITESPACE)
  if(closed)
    message(NOTICE \"NOTE: other users cannot enter \${closed}, where LibTorch lies: to install for them build with FLASHSTEP_LIBTORCH set to a LibTorch that they can read.\")
  endif()")

configure_package_config_file("${PROJECT_SOURCE_DIR}/cmake/flashstepConfig.cmake.in"
  "${PROJECT_BINARY_DIR}/flashstepConfig.cmake" INSTALL_DESTINATION "${_package_dir}")
write_basic_package_version_file("${PROJECT_BINARY_DIR}/flashstepConfigVersion.cmake"
  COMPATIBILITY SameMinorVersion)
install(FILES "${PROJECT_BINARY_DIR}/flashstepConfig.cmake" "${PROJECT_BINARY_DIR}/flashstepConfigVersion.cmake"
        DESTINATION "${_package_dir}")
