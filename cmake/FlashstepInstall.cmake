# cmake --install: the program, the library with its headers, and a CMake package that finds the same LibTorch
# without any hint: find_package(flashstep) defines flashstep::flashstep.
include(CMakePackageConfigHelpers)
set(_package_dir "${CMAKE_INSTALL_LIBDIR}/cmake/flashstep")

install(TARGETS flashstep EXPORT flashstep LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}"
        INCLUDES DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}")
install(TARGETS flashstep_program RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}")
# A header is installed when it and all that it includes want only the standard library and LibTorch, which every user
# has. What only tests want stays here, too.
file(GLOB_RECURSE headers CONFIGURE_DEPENDS RELATIVE "${PROJECT_SOURCE_DIR}" "${PROJECT_SOURCE_DIR}/flashstep/*.h")
list(FILTER headers EXCLUDE REGEX "/(testing|testdata|gloo_standin|cuda)/|_test\\.h$|/test_[^/]*$|/(reference_words|hard_text)\\.h$")
foreach(header IN LISTS headers)
  flashstep_includes("${PROJECT_SOURCE_DIR}/${header}" PRIVATE "<(hwy|nlohmann|CLI|curl|cairo|librsvg|gtest|cuda|nccl)|\\.cuh|/cuda/" private)
  if(NOT private)
    get_filename_component(folder "${header}" DIRECTORY)
    install(FILES "${PROJECT_SOURCE_DIR}/${header}" DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}/${folder}")
  endif()
endforeach()
install(FILES "${PROJECT_SOURCE_DIR}/LICENSE" "${PROJECT_SOURCE_DIR}/README.md" DESTINATION "${CMAKE_INSTALL_DOCDIR}")
install(DIRECTORY "${PROJECT_SOURCE_DIR}/docs" "${PROJECT_SOURCE_DIR}/examples" DESTINATION "${CMAKE_INSTALL_DOCDIR}"
        USE_SOURCE_PERMISSIONS PATTERN "CMakeLists.txt" EXCLUDE)  # that one builds the tests of this tree
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
