// Draws pictures by librsvg and cairo.
#include "flashstep/measure/png.h"

#include <cmath>
#include <librsvg/rsvg.h>
#include <memory>

#include "flashstep/error.h"

namespace flashstep::measure {
namespace {

template <typename T, void (*Free)(T*)>
struct Freed {
  void operator()(T* pointer) const { Free(pointer); }
};
using Surface = std::unique_ptr<cairo_surface_t, Freed<cairo_surface_t, cairo_surface_destroy>>;
using Context = std::unique_ptr<cairo_t, Freed<cairo_t, cairo_destroy>>;
struct Unref {
  void operator()(RsvgHandle* handle) const { g_object_unref(handle); }
};
using Handle = std::unique_ptr<RsvgHandle, Unref>;

[[noreturn]] void fail(GError* error) {
  const std::string reason = error != nullptr ? error->message : "unknown reason";
  if (error != nullptr) g_error_free(error);
  throw MachineError("[png] could not draw the picture: " + reason);
}

cairo_status_t append(void* bytes, const unsigned char* data, unsigned int size) {
  static_cast<std::string*>(bytes)->append(reinterpret_cast<const char*>(data), size);
  return CAIRO_STATUS_SUCCESS;
}

void check(cairo_status_t status) {
  if (status != CAIRO_STATUS_SUCCESS)
    throw MachineError(std::string("[png] could not draw the picture: ") +
                       cairo_status_to_string(status));
}

std::string draw(const std::string& svg, double scale) {
  GError* error = nullptr;
  const Handle handle(
      rsvg_handle_new_from_data(reinterpret_cast<const guint8*>(svg.data()), svg.size(), &error));
  if (!handle) fail(error);
  rsvg_handle_set_dpi(handle.get(), 96);
  double width = 0, height = 0;
  if (!rsvg_handle_get_intrinsic_size_in_pixels(handle.get(), &width, &height))
    throw MachineError("[png] the picture has no size in pixels");
  const RsvgRectangle page = {0, 0, std::ceil(width * scale), std::ceil(height * scale)};

  const Surface surface(cairo_image_surface_create(CAIRO_FORMAT_RGB24, static_cast<int>(page.width),
                                                   static_cast<int>(page.height)));
  check(cairo_surface_status(surface.get()));
  const Context context(cairo_create(surface.get()));
  cairo_set_source_rgb(context.get(), 1, 1, 1);
  cairo_paint(context.get());
  if (!rsvg_handle_render_document(handle.get(), context.get(), &page, &error)) fail(error);
  std::string bytes;
  check(cairo_surface_write_to_png_stream(surface.get(), append, &bytes));
  return bytes;
}

[[maybe_unused]] const bool draws = (set_png_renderer(draw), true);

}  // namespace

}  // namespace flashstep::measure
