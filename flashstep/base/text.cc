#include "flashstep/base/text.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <numeric>

#include <nlohmann/json.hpp>

namespace flashstep {

std::string join(const std::vector<std::string>& parts, std::string_view separator) {
  std::string out;
  for (size_t i = 0; i < parts.size(); ++i) {
    if (i > 0) out += separator;
    out += parts[i];
  }
  return out;
}

std::string fixed(double value, int digits) {
  char buffer[352];  // the longest double in %f: 309 digits, sign, point, 32 decimals
  std::snprintf(buffer, sizeof buffer, "%.*f", std::min(digits, 32), value);
  return buffer;
}

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

std::string with_commas(int64_t value) {
  const std::string digits = std::to_string(value);
  const size_t sign = value < 0 ? 1 : 0;
  std::string out = digits.substr(0, sign);
  for (size_t i = sign; i < digits.size(); ++i) {
    if (i > sign && (digits.size() - i) % 3 == 0) out += ',';
    out += digits[i];
  }
  return out;
}

std::string human_bytes(uint64_t bytes) {
  static constexpr const char* kUnits[] = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  if (bytes < 1024) return str(bytes, " B");
  double value = static_cast<double>(bytes) / 1024;
  size_t unit = 0;
  while (value >= 1024 && unit + 1 < std::size(kUnits)) {
    value /= 1024;
    ++unit;
  }
  return str(fixed(value, value < 100 ? 1 : 0), " ", kUnits[unit]);
}

std::string human_seconds(double seconds) {
  if (!(seconds >= 0) || !std::isfinite(seconds)) return "?";
  if (seconds < 10) return fixed(seconds, 2) + " s";
  if (seconds < 60) return fixed(seconds, 1) + " s";
  const auto whole = static_cast<int64_t>(std::llround(seconds));
  char buffer[64];
  if (whole < 3600) {
    std::snprintf(buffer, sizeof buffer, "%dm %02ds", static_cast<int>(whole / 60),
                  static_cast<int>(whole % 60));
  } else {
    std::snprintf(buffer, sizeof buffer, "%lldh %02dm", static_cast<long long>(whole / 3600),
                  static_cast<int>(whole % 3600 / 60));
  }
  return buffer;
}

namespace {

size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t substituted = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, substituted});
    }
  }
  return row[b.size()];
}

// Length of the well-formed UTF-8 sequence at the start of `bytes` (Unicode 16, table 3-7), or 0;
// then `malformed` is the length of the maximal malformed part.
size_t well_formed_length(std::string_view bytes, size_t& malformed) {
  const auto at = [&](size_t i) {
    return i < bytes.size() ? static_cast<unsigned char>(bytes[i]) : 0u;
  };
  const unsigned first = at(0);
  malformed = 1;
  if (first < 0x80) return 1;
  const size_t length = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
  if (first < 0xC2 || first > 0xF4) return 0;
  // The second byte's range excludes overlong forms, surrogates and values beyond U+10FFFF.
  const unsigned low = first == 0xE0 ? 0xA0 : first == 0xF0 ? 0x90 : 0x80;
  const unsigned high = first == 0xED ? 0x9F : first == 0xF4 ? 0x8F : 0xBF;
  if (at(1) < low || at(1) > high) return 0;
  for (size_t i = 2; i < length; ++i) {
    malformed = i;
    if ((at(i) & 0xC0) != 0x80) return 0;
  }
  return length;
}

}  // namespace

std::string nearest(std::string_view word, const std::vector<std::string>& candidates) {
  if (word == "gpu" && std::ranges::find(candidates, "cuda") != candidates.end()) return "cuda";
  std::string best;
  size_t best_distance = std::max<size_t>(word.size() / 2, 1) + 1;
  for (const std::string& candidate : candidates) {
    const size_t distance = edit_distance(word, candidate);
    if (distance < best_distance) {
      best_distance = distance;
      best = candidate;
    }
  }
  return best;
}

std::string printable_utf8(std::string_view bytes) {
  std::string out;
  out.reserve(bytes.size());
  while (!bytes.empty()) {
    size_t malformed = 0;
    const size_t length = well_formed_length(bytes, malformed);
    if (length > 0) {
      out += bytes.substr(0, length);
    } else {
      out += "\xEF\xBF\xBD";
    }
    bytes.remove_prefix(length > 0 ? length : malformed);
  }
  return out;
}

// A first byte and two more at most may go on. Behind three that are none, no character does.
size_t whole_characters(std::string_view bytes) {
  for (size_t kept = 1; kept <= 3 && kept <= bytes.size(); ++kept) {
    const auto byte = static_cast<uint8_t>(bytes[bytes.size() - kept]);
    if ((byte & 0xC0) == 0x80) continue;
    const size_t length = byte < 0xC0 ? 1 : byte < 0xE0 ? 2 : byte < 0xF0 ? 3 : 4;
    return kept < length ? bytes.size() - kept : bytes.size();
  }
  return bytes.size();
}

std::string json_spelling(std::string_view text) {
  using Json = nlohmann::json;
  return Json(text).dump(-1, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace);
}

std::string without_controls(std::string_view utf8) {
  std::string out;
  out.reserve(utf8.size());
  for (size_t i = 0; i < utf8.size(); ++i) {
    const auto byte = static_cast<uint8_t>(utf8[i]);
    const bool is_white = byte == '\t' || byte == '\n' || byte == '\r';
    const bool is_c1 =
        byte == 0xC2 && i + 1 < utf8.size() && (static_cast<uint8_t>(utf8[i + 1]) & 0xE0) == 0x80;
    if ((byte < 0x20 && !is_white) || byte == 0x7F || is_c1) {
      out += "\xEF\xBF\xBD";
      i += is_c1;
    } else {
      out += utf8[i];
    }
  }
  return out;
}

}  // namespace flashstep
