# cmake --install: the program, the library with its headers, and a CMake package that finds the same LibTorch
# without any hint: find_package(flashstep) defines flashstep::flashstep.
include(CMakePackageConfigHelpers)
set(_package_dir "${CMAKE_INSTALL_LIBDIR}/cmake/flashstep")

install(TARGETS flashstep EXPORT flashstep LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}"
        INCLUDES DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}")
install(TARGETS flashstep_program RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}")
install(DIRECTORY "${PROJECT_SOURCE_DIR}/flashstep" DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}"
        FILES_MATCHING PATTERN "*.h"
        # What only tests, and twins of libraries, need.
        PATTERN "testing" EXCLUDE PATTERN "testdata" EXCLUDE PATTERN "gloo_standin" EXCLUDE
        PATTERN "*_test.h" EXCLUDE PATTERN "test_*.h" EXCLUDE PATTERN "reference_words.h" EXCLUDE
        PATTERN "hard_text.h" EXCLUDE)
install(DIRECTORY "${PROJECT_SOURCE_DIR}/configs" DESTINATION "${CMAKE_INSTALL_DATADIR}/flashstep" OPTIONAL)
install(EXPORT flashstep NAMESPACE flashstep:: DESTINATION "${_package_dir}" FILE flashstepTargets.cmake)
install(FILES "${PROJECT_SOURCE_DIR}/cmake/FindLibTorch.cmake" "${PROJECT_SOURCE_DIR}/scripts/libtorch_path"
        DESTINATION "${_package_dir}")

configure_package_config_file("${PROJECT_SOURCE_DIR}/cmake/flashstepConfig.cmake.in"
  "${PROJECT_BINARY_DIR}/flashstepConfig.cmake" INSTALL_DESTINATION "${_package_dir}")
write_basic_package_version_file("${PROJECT_BINARY_DIR}/flashstepConfigVersion.cmake"
  COMPATIBILITY SameMinorVersion)
install(FILES "${PROJECT_BINARY_DIR}/flashstepConfig.cmake" "${PROJECT_BINARY_DIR}/flashstepConfigVersion.cmake"
        DESTINATION "${_package_dir}")
