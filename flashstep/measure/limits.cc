#include "flashstep/measure/limits.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <map>
#include <mutex>
#include <thread>

#include <nlohmann/json.hpp>

#include "flashstep/base/hash.h"
#include "flashstep/base/text.h"
#include "flashstep/detail/files.h"
#include "flashstep/error.h"
#include "flashstep/measure/clock.h"
#include "flashstep/measure/data_sheet.h"
#include "flashstep/measure/others_cpu.h"
#include "flashstep/measure/stats.h"

namespace flashstep::measure {
namespace {

using Json = nlohmann::ordered_json;
constexpr int kFormat = 5;  // of the file and of the way of measuring: raise it when either changes
constexpr double kMostOfOthers = 0.1;  // of the cores that other programs may keep busy meanwhile

// All that a limit may depend on.
std::string identity(const Machine& machine) {
  std::string text =
      str("format ", kFormat, "; ", machine.processor, "; ", machine.instructions, "; cores ",
          machine.cores, "; threads ", machine.threads, "; LibTorch ", machine.libtorch_version,
          "; CUDA ", machine.cuda_version, "; driver ", machine.driver_version);
  for (const Gpu& gpu : machine.gpus)
    text += str("; ", gpu.name, " ", gpu.memory_bytes, " ", gpu.multiprocessors);
  return text;
}

// The part of the cache file that belongs to `device`; nothing if the file is missing, damaged or
// of another machine whose key happens to be the same.
std::optional<Limits> read_cache(const Machine& machine, const std::string& device) {
  try {
    const Json file = Json::parse(read_file(limits_cache_file(machine)));
    if (file.at("machine") != identity(machine)) return std::nullopt;
    const Json& entry = file.at("devices").at(device);
    Limits limits{.measured_at = entry.at("measured_at").get<std::string>()};
    for (const Json& json : entry.at("limits")) {
      Limit limit{device, json.at("name"), json.at("rate"), json.at("median_rate"),
                  json.at("method")};
      if (!(limit.rate > 0) || !std::isfinite(limit.rate)) return std::nullopt;
      limits.limits.push_back(std::move(limit));
    }
    if (limits.limits.empty()) return std::nullopt;
    return limits;
  } catch (const std::exception&) {
    return std::nullopt;
  }
}

// Do other programs keep too many cores (on a small machine: one) busy right now? The running
// threads are the fourth field of /proc/loadavg, "3/512"; this one is among them.
bool machine_is_busy(int cores) {
  std::vector<double> others;
  for (int i = 0; i < 5; ++i) {
    std::ifstream file("/proc/loadavg");
    double load = 0, running = 1;
    file >> load >> load >> load >> running;
    others.push_back(running - 1);
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return median(others) >= std::max(1.0, kMostOfOthers * cores);
}

// Those that this process has asked for.
struct Remembered {
  std::mutex mutex;
  std::map<std::string, Limits> by_device;
};
Remembered& remembered() {
  static Remembered all;
  return all;
}

double remembered_rate(const std::string& device, const std::string& name) {
  std::vector<std::string> names;
  const Limits limits = remembered_limits(device);
  for (const Limit& limit : limits.limits) {
    if (limit.name == name) return limit.rate;
    names.push_back("\"" + limit.name + "\"");
  }
  throw UserError(
      str("[limits] expected one of ", join(names), " on ", device, ", got \"", name, "\""));
}

}  // namespace

std::filesystem::path limits_cache_file(const Machine& machine) {
  const char* cache = std::getenv("XDG_CACHE_HOME");
  const char* home = std::getenv("HOME");
  std::filesystem::path base = cache != nullptr && *cache != '\0' ? std::filesystem::path(cache)
                               : home != nullptr && *home != '\0'
                                   ? std::filesystem::path(home) / ".cache"
                                   : std::filesystem::temp_directory_path();
  return base / "flashstep" / ("machine-" + hash_bytes(identity(machine)).substr(0, 12) + ".json");
}

Limits machine_limits(const Machine& machine, const std::string& device, bool force) {
  require(device == "cpu" || device == "cuda" || device == "link",
          "[limits] expected device cpu, cuda or link, got \"", device, "\"");
  require(device != "cuda" || !machine.gpus.empty(),
          "[limits] expected a GPU for device cuda, got none");
  if (!force)
    if (auto cached = read_cache(machine, device)) return *cached;
  Limits limits{.measured_at = utc_now("%Y-%m-%d %H:%M UTC"),
                .busy = machine_is_busy(machine.cores)};
  const CpuOfOthers others;  // they may begin at any moment
  limits.limits = measure_limits(device);
  limits.busy = limits.busy || others.share() > kMostOfOthers;
  if (!limits.busy) limits.not_kept = write_limits_cache(machine, device, limits);
  return limits;
}

Limits remembered_limits(const std::string& device) {
  const std::lock_guard<std::mutex> lock(remembered().mutex);
  auto& known = remembered().by_device;
  if (!known.contains(device)) known[device] = machine_limits(describe_machine(), device);
  return known[device];
}

bool remembered_limits_are_too_low() {
  const std::lock_guard<std::mutex> lock(remembered().mutex);
  const auto& known = remembered().by_device;
  return std::any_of(known.begin(), known.end(),
                     [](const auto& entry) { return entry.second.busy; });
}

std::string write_limits_cache(const Machine& machine, const std::string& device,
                               const Limits& limits) {
  const auto path = limits_cache_file(machine);
  Json file = {{"machine", identity(machine)}, {"devices", Json::object()}};
  try {  // keep what is known of the other device
    Json old = Json::parse(read_file(path));
    if (old.at("machine") == identity(machine) && old.at("devices").is_object())
      file = std::move(old);
  } catch (const std::exception&) {
  }
  Json entry = {{"measured_at", limits.measured_at}, {"limits", Json::array()}};
  for (const Limit& limit : limits.limits)
    entry["limits"].push_back({{"name", limit.name},
                               {"rate", limit.rate},
                               {"median_rate", limit.median_rate},
                               {"method", limit.method}});
  file["devices"][device] = std::move(entry);
  try {
    make_directories(path.parent_path());
    write_file(path, file.dump(2) + "\n");
  } catch (const std::exception& error) {  // a read-only home: measured again next time
    return error.what();
  }
  return "";
}

double matmul_limit_flops(const std::string& device, const std::string& dtype) {
  if (dtype == "bf16-fp8") return matmul_limit_flops(device, "bf16");  // a share may exceed 100 %
  if (dtype == "fp32-split") return matmul_limit_flops(device, "bf16") / 3;  // three products each
  const double rate = remembered_rate(device, "matmul " + dtype);
  const bool may_widen = device == "cpu" && (dtype == "bf16" || dtype == "fp16");
  return may_widen ? std::max(rate, remembered_rate(device, "matmul fp32")) : rate;
}

double memory_limit_bytes_per_s(const std::string& device) {
  return remembered_rate(device, device == "cpu" ? "memory triad" : "memory copy");
}

std::optional<double> data_sheet_rate(const Machine& machine, const Limit& limit) {
  if (machine.gpus.empty()) return std::nullopt;
  if (limit.name == "GPU to GPU") {
    const auto link = find_link_sheet(machine.gpus[0].name);
    return link ? std::optional(link->bytes_per_s) : std::nullopt;
  }
  if (limit.device != "cuda") return std::nullopt;
  const auto sheet = find_data_sheet(machine.gpus[0].name);
  if (!sheet) return std::nullopt;
  double rate = 0;
  if (limit.name == "matmul fp32") rate = sheet->fp32;
  if (limit.name == "matmul tf32") rate = sheet->tf32;
  if (limit.name == "matmul bf16") rate = sheet->bf16;
  if (limit.name == "matmul fp16") rate = sheet->fp16;
  if (limit.name.starts_with("memory")) rate = sheet->memory_bytes_per_s;
  if (rate == 0) return std::nullopt;
  return rate;
}

}  // namespace flashstep::measure
