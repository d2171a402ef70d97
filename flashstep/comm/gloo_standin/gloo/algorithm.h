// See README.md: LibTorch's header asks for this file and for nothing in it.
#pragma once
