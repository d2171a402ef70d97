// What this machine can do at most, measured: the denominator of every "share of the limit".
//
// A limit is the ninth decile of the rates of repeated calls, at the best of several sizes: what
// the machine reaches when nothing disturbs it, without trusting a single lucky reading.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "flashstep/measure/machine.h"

namespace flashstep::measure {

struct Limit {
  // "cpu", "cuda" (the first GPU; the others are taken to be like it), or "link": what ranks of
  // this machine talk over.
  std::string device;
  // "matmul fp32", "matmul tf32", "matmul bf16", "matmul fp16": FLOP/s of square products, fp32
  // sums. "memory triad" (a = b + s c; 12 bytes an element), "memory copy", "memory read": bytes/s.
  // Of a link, bytes/s that one end sends: "loopback" (a TCP stream), "GPU to GPU" (each sends as
  // much as it receives).
  std::string name;
  double rate = 0;
  double median_rate = 0;  // of the same calls: far below `rate`, the machine was busy
  std::string method;      // "2048 x 2048 x 2048, 9 calls"
};

struct Limits {
  std::string measured_at;  // "2026-11-21 03:15 UTC"
  bool busy = false;        // other programs ran before or meanwhile: the rates are too low
  std::vector<Limit> limits = {};
  std::string not_kept = {};  // why the file could not be written; empty: it could, or `busy`
};

// The limits of one device ("cpu", "cuda" or "link"), from the cache file of this machine if they
// were ever measured (the same processor, cores, threads, GPUs, driver and LibTorch), else measured
// now: under 3 s on a CPU. `force` measures anew. What is measured while other programs run is
// returned but not kept. Leaves LibTorch's random generators and settings as they were. A cache
// that cannot be read or written costs a new measurement, nothing else. Call it on one rank only.
Limits machine_limits(const Machine& machine, const std::string& device, bool force = false);

// The same, remembered in the process: what its shares of a limit are shares of.
Limits remembered_limits(const std::string& device);
// Whether any of those that this process has asked for was measured beside other programs.
bool remembered_limits_are_too_low();

// FLOP/s of matrix products. device: "cpu" or "cuda"; dtype: "fp32", "fp32-split"
// (products/product.h), "tf32", "bf16", "bf16-fp8" (as "bf16"), "fp16".
// On a CPU values of 16 bits may be multiplied in fp32, where that is faster. Of
// remembered_limits(). UserError for an unknown pair.
double matmul_limit_flops(const std::string& device, const std::string& dtype);

// Bytes/s: the triad on a CPU, the copy on a GPU.
double memory_limit_bytes_per_s(const std::string& device);

// What the data sheet says to this limit; nothing if there is none.
std::optional<double> data_sheet_rate(const Machine& machine, const Limit& limit);

// ${XDG_CACHE_HOME:-~/.cache}/flashstep/machine-KEY.json, and putting the limits of a device there.
std::filesystem::path limits_cache_file(const Machine& machine);
// Returns why that could not be done; empty: it is done.
std::string write_limits_cache(const Machine& machine, const std::string& device,
                               const Limits& limits);

// measure_limits.cc: measures now, without any cache.
std::vector<Limit> measure_limits(const std::string& device);

}  // namespace flashstep::measure
