// The example, with flashstep's umbrella in front of its own includes.
#include <flashstep/flashstep.h>

#include "../../examples/own_module.cc"
