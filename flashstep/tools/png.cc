// Draws pictures by librsvg and cairo, encodes them by libpng.
#include "flashstep/measure/png.h"

#include <cmath>
#include <librsvg/rsvg.h>
#include <memory>
#include <png.h>

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

void check(cairo_status_t status) {
  if (status != CAIRO_STATUS_SUCCESS)
    throw MachineError(std::string("[png] could not draw the picture: ") +
                       cairo_status_to_string(status));
}

// As PNG, quickly: cairo's own encoder takes three times as long, and its files are no smaller.
std::string encoded(cairo_surface_t* surface) {
  cairo_surface_flush(surface);
  const unsigned char* data = cairo_image_surface_get_data(surface);
  const size_t stride = cairo_image_surface_get_stride(surface);
  png_image image = {};
  image.version = PNG_IMAGE_VERSION;
  image.width = cairo_image_surface_get_width(surface);
  image.height = cairo_image_surface_get_height(surface);
  image.format = PNG_FORMAT_BGR;  // cairo's pixels are words of four bytes, blue first
  image.flags = PNG_IMAGE_FLAG_FAST;
  const auto pixels =
      std::make_unique_for_overwrite<unsigned char[]>(size_t{3} * image.width * image.height);
  unsigned char* to = pixels.get();
  for (size_t y = 0; y < image.height; ++y) {
    const unsigned char* from = data + y * stride;
    for (size_t x = 0; x < image.width; ++x, from += 4, to += 3) {
      to[0] = from[0];
      to[1] = from[1];
      to[2] = from[2];
    }
  }
  png_alloc_size_t size = PNG_IMAGE_PNG_SIZE_MAX(image);
  const auto bytes = std::make_unique_for_overwrite<char[]>(size);
  if (png_image_write_to_memory(&image, bytes.get(), &size, 0, pixels.get(), 0, nullptr) == 0)
    throw MachineError(std::string("[png] could not write the picture: ") + image.message);
  return {bytes.get(), size};
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
  return encoded(surface.get());
}

[[maybe_unused]] const bool draws = (set_png_renderer(draw), true);

}  // namespace

}  // namespace flashstep::measure
