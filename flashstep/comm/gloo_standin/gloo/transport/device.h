// See README.md.
#pragma once

namespace gloo::transport {
class Device;
}
