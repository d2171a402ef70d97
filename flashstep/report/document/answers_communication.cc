// Answers about collectives: what a sum over ranks costs.
#include <algorithm>
#include <cmath>
#include <map>

#include "flashstep/base/text.h"
#include "flashstep/report/document/question.h"

namespace flashstep::report {
namespace {

const std::vector<std::string> kAllreduceColumns = {"backend", "device", "ranks",
                                                    "size",    "time",   "bus"};

// Rows with a time of one backend on one device.
struct Transport {
  std::string name;
  std::vector<size_t> rows;
};

std::vector<Transport> transports_of(const TableView& table) {
  std::map<std::string, size_t> places;
  std::vector<Transport> transports;
  for (size_t row = 0; row < table.rows(); ++row) {
    if (std::isnan(table.number(row, "time"))) continue;
    const std::string name = table.text(row, "backend") + " on " + table.text(row, "device");
    const auto [place, is_new] = places.try_emplace(name, transports.size());
    if (is_new) transports.push_back({name, {}});
    transports[place->second].rows.push_back(row);
  }
  return transports;
}

template <typename Less>
size_t least(const std::vector<size_t>& rows, const Less& less) {
  return *std::min_element(rows.begin(), rows.end(), less);
}

// What size and ranks do to the time of one transport.
std::string describe_transport(const TableView& table, const Transport& transport) {
  const auto number = [&](size_t row, const char* column) { return table.number(row, column); };
  const auto by_size = [&](size_t a, size_t b) {
    return std::pair(number(a, "size"), number(a, "ranks")) <
           std::pair(number(b, "size"), number(b, "ranks"));
  };
  const size_t small = least(transport.rows, by_size);
  const size_t large = *std::max_element(transport.rows.begin(), transport.rows.end(), by_size);
  std::string sentence = str(transport.name, ": from ", milliseconds(number(small, "time")), " (",
                             table.text(small, "size"), " MB, ", table.text(small, "ranks"),
                             " ranks) to ", milliseconds(number(large, "time")), " (",
                             table.text(large, "size"), " MB, ", table.text(large, "ranks"),
                             " ranks, bus bandwidth ", three_digits(number(large, "bus")), " GB/s");
  const double of_link = number(large, "of link");
  if (!std::isnan(of_link)) sentence += str(", ", fixed(of_link, 0), " % of the link");
  return sentence + ").";
}

// From the smallest to the largest size at one number of ranks: latency or bandwidth.
std::string size_sentence(const TableView& table, const Transport& transport) {
  const std::string ranks = table.text(transport.rows.front(), "ranks");
  double least_size = INFINITY, most_size = 0, least_time = 0, most_time = 0;
  for (const size_t row : transport.rows) {
    if (table.text(row, "ranks") != ranks) continue;
    const double size = table.number(row, "size"), time = table.number(row, "time");
    if (size < least_size) least_size = size, least_time = time;
    if (size > most_size) most_size = size, most_time = time;
  }
  if (!(most_size > least_size)) return "";
  const double bytes = most_size / least_size, time = most_time / least_time;
  // With half of the proportional growth the fixed cost of a call is half of the small one's time.
  const bool bandwidth = time > bytes / 2;
  return str(transport.name, ", ", ranks, " ranks: ", three_digits(bytes), " times the bytes take ",
             three_digits(time), " times as long: ",
             bandwidth ? "the bandwidth decides already at "
                       : "the fixed cost of a call still "
                         "counts at ",
             three_digits(least_size), " MB.");
}

// More ranks with the same buffer.
std::string ranks_sentence(const TableView& table, const Transport& transport) {
  double size = 0;
  for (const size_t row : transport.rows) size = std::max(size, table.number(row, "size"));
  double few = INFINITY, many = 0, time_few = 0, time_many = 0;
  for (const size_t row : transport.rows) {
    if (table.number(row, "size") != size) continue;
    const double ranks = table.number(row, "ranks"), time = table.number(row, "time");
    if (ranks < few) few = ranks, time_few = time;
    if (ranks > many) many = ranks, time_many = time;
  }
  if (!(many > few)) return "";
  const auto sent = [](double n) { return 2 * (n - 1) / n; };
  const double measured = time_many / time_few, expected = sent(many) / sent(few);
  return str(
      transport.name, ", ", three_digits(size), " MB: ", many, " ranks take ", fixed(measured, 2),
      " times as long as ", few, "; what each must send, 2 (n - 1) / n of the buffer, grows ",
      fixed(expected, 2), " times, so that ",
      measured > 1.1 * expected ? "ranks get in each other's way beyond it." : "that explains it.");
}

// The time of each case on both backends.
std::string backends_sentence(const TableView& table) {
  double nccl = 0, gloo = 0;
  std::string size, ranks;
  for (const size_t row : table.where({{"backend", "nccl"}})) {
    const auto other = table.first({{"backend", "gloo"},
                                    {"ranks", table.text(row, "ranks")},
                                    {"size", table.text(row, "size")}});
    if (!other || std::isnan(table.number(row, "time")) ||
        std::isnan(table.number(*other, "time"))) {
      continue;
    }
    nccl = table.number(row, "time");
    gloo = table.number(*other, "time");
    size = table.text(row, "size");
    ranks = table.text(row, "ranks");
  }
  if (!(nccl > 0)) return "";
  const int order = compare_measured(nccl, gloo);
  const bool faster = order < 0;
  if (order == 0)
    return str("At ", size, " MB and ", ranks, " ranks NCCL is as fast as Gloo within 2 %.");
  return str("At ", size, " MB and ", ranks, " ranks NCCL is ",
             three_digits(faster ? gloo / nccl : nccl / gloo), " times ",
             faster ? "faster" : "slower", " than Gloo.");
}

Sentences answer_single_node(const Evidence& evidence) {
  const TableView table = evidence.table("allreduce", kAllreduceColumns);
  Sentences sentences;
  for (const Transport& transport : transports_of(table)) {
    sentences.push_back(describe_transport(table, transport));
    for (const std::string& sentence :
         {size_sentence(table, transport), ranks_sentence(table, transport)}) {
      if (!sentence.empty()) sentences.push_back(sentence);
    }
  }
  if (sentences.empty()) return {};
  const std::string backends = backends_sentence(table);
  if (!backends.empty()) sentences.push_back(backends);
  return sentences;
}

}  // namespace

void add_communication_questions(std::vector<Question>& questions) {
  questions.push_back(
      {"distributed_communication_single_node", "2024 2025 2026", "allreduce",
       "How long does an all-reduce take on one machine, by backend, device, size and number of "
       "processes, and how do these work together?",
       "`flashstep bench allreduce`", answer_single_node});
  questions.push_back({"distributed_communication_multi_node", "2024", "allreduce",
                       "And across two machines with one, two and three processes each?",
                       "a second machine under the same measurement, which `flashstep bench "
                       "allreduce` does not start",
                       nullptr});
}

}  // namespace flashstep::report
