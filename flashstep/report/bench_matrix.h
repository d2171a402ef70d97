// Training a language model with every implementation of attention under every wrapper.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "flashstep/report/bench_report.h"
#include "flashstep/report/parallel_case.h"

namespace flashstep::report {

// How the cells of one number of ranks are measured. A contestant is "attention wrapper": "cuda
// bucketed 25".
struct MatrixPlan {
  ParallelCase c;
  std::vector<std::string> contestants;
  std::string train, validation;       // token files
  int64_t epochs = 1, most_steps = 0;  // at most so many steps an epoch; 0: all
  int64_t validation_tokens = 0;       // the first so many; 0: all
  double learning_rate = 1e-3;
  void visit(FieldVisitor& visitor);
};

struct BenchMatrixOptions {
  ParallelAxes axes;  // the first number of ranks is that of every wrapper but none
  std::vector<std::string> attention;
  std::vector<std::string> wrappers = {"none", "naive", "flat", "overlapped", "bucketed", "torch"};
  std::vector<double> bucket_megabytes = {25};
  MatrixPlan plan;  // its case and contestants are replaced
  std::function<void(const std::string& line)> progress;
};
// "2024", "2025", "2026": the sizes of the handouts; UserError for another year.
BenchMatrixOptions matrix_preset(const std::string& year);

struct MatrixRun {
  std::string contestant;
  int64_t ranks = 1;
  std::vector<double> steps;            // seconds
  double epoch_steps = 0;               // in an epoch, those left out included
  std::vector<double> epoch_seconds;    // of training, as far as it went
  std::vector<double> validation_loss;  // after each epoch, nats a token
  double peak_bytes = 0;                // of the rank with most
  double tokens_per_step = 0;           // of all ranks
  double bucket_megabytes = 0;          // in use; 0: not known
  std::string trouble;

  bool has_times() const { return !steps.empty(); }
  double tokens_per_second() const;
  std::string attention() const;  // the contestant's parts
  std::string wrapper() const;
};

// In the process that was called, and in each rank that it started.
BenchReport bench_matrix(const BenchMatrixOptions& options);
void bench_matrix_rank(const std::string& task);

// The parts of it.
std::vector<MatrixRun> matrix_runs(const MatrixPlan& plan,
                                   const std::vector<std::string>& handed_over);
measure::Table matrix_table(const std::vector<MatrixRun>& runs);
// Time of a step, peak memory, tokens/s, and a heat map of the speed-up by wrapper.
std::vector<NamedPicture> matrix_pictures(const std::vector<MatrixRun>& runs,
                                          const std::string& subtitle, const std::string& footnote);

}  // namespace flashstep::report
