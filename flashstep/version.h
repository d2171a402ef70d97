// The version that a program is compiled with.
#pragma once

#define FLASHSTEP_VERSION_MAJOR 0
#define FLASHSTEP_VERSION_MINOR 1
#define FLASHSTEP_VERSION_PATCH 0
