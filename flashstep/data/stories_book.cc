#include "flashstep/data/stories_book.h"

#include <algorithm>

#include "flashstep/data/stories_compile.h"
#include "flashstep/data/stories_text.h"

namespace flashstep {
namespace {

// One block of the text: "plot ..." or "pool ..." and the lines that follow it.
struct Block {
  std::string_view head;
  std::vector<std::string> lines;  // each variant in one line
};

// Splits into blocks and joins the lines of a variant.
std::vector<Block> read_blocks(std::span<const std::string_view> texts) {
  std::vector<Block> blocks;
  for (std::string_view text : texts) {
    size_t start = 0;
    for (size_t i = 0; i <= text.size(); ++i) {
      if (i < text.size() && text[i] != '\n') continue;
      const std::string_view raw = text.substr(start, i - start), line = trim(raw);
      start = i + 1;
      if (line.empty()) continue;
      if (line.starts_with("plot ") || line.starts_with("pool ")) {
        blocks.push_back({line, {}});
        continue;
      }
      check_text(!blocks.empty(), "text before the first pool or plot: ", line);
      auto& lines = blocks.back().lines;
      if (raw.front() == ' ') {
        check_text(!lines.empty() && lines.back().starts_with("- "),
                   "nothing to go on from: ", line);
        lines.back().append(" ").append(line);
      } else {
        lines.emplace_back(line);
      }
    }
  }
  return blocks;
}

uint32_t find_class(const Compiler& compiler, std::string_view name, World world) {
  const ByWorld found = compiler.find_class(name);
  check_text(found[world] != kNowhere, "no class ", name, " in world ", int{world});
  return found[world];
}

class BookParser {
 public:
  explicit BookParser(std::span<const std::string_view> lexicon) {
    book_.lexicon = parse_lexicon(lexicon);
  }

  Book parse(std::span<const std::string_view> texts) {
    const std::vector<Block> blocks = read_blocks(texts);
    for (const Block& block : blocks) {  // names first: passages may call passages that come later
      const auto words = split(block.head, ' ');
      if (words[0] != "pool") continue;
      check_text(words.size() == 2, "expected \"pool NAME\", got ", block.head);
      for (const Variants& pool : book_.pools)
        check_text(pool.name != words[1], "twice: ", words[1]);
      book_.pools.push_back({std::string(words[1]), {}, 0});
    }
    size_t next_pool = 0;
    for (const Block& block : blocks) {
      if (block.head.starts_with("pool ")) {
        parse_pool(block, book_.pools[next_pool++]);
      } else {
        parse_plot(block);
      }
    }
    return std::move(book_);
  }

 private:
  void parse_pool(const Block& block, Variants& pool) {
    const Compiler compiler(book_, nullptr);
    pool.first_program = book_.num_pool_programs;
    for (const std::string& line : block.lines) add_variant(compiler, line, pool);
    check_text(!pool.programs.empty(), "empty pool ", pool.name);
    book_.num_pool_programs += static_cast<uint32_t>(pool.programs.size());
  }

  void parse_plot(const Block& block) {
    Plot plot;
    const auto words = split(block.head, ' ');
    check_text(words.size() == 3, "expected \"plot NAME WORLD\", got ", block.head);
    plot.name = words[1];
    plot.worlds = {words[2] != "animal", words[2] != "child"};
    check_text(words[2] == "animal" || words[2] == "child" || words[2] == "any", "world of ",
               block.head);
    VariableNames variables;
    const Compiler compiler(book_, &variables);
    set_elders(compiler, plot, "kin");
    for (const std::string& line : block.lines) {
      if (line.starts_with("- ")) {
        check_text(!plot.beats.empty(), "variant before the first beat in ", plot.name);
        add_variant(compiler, line, plot.beats.back().variants);
      } else {
        parse_plot_line(compiler, split(line, ' '), plot, variables);
      }
    }
    for (const Beat& beat : plot.beats) {
      check_text(!beat.variants.programs.empty(), "empty beat in ", plot.name);
    }
    book_.plots.push_back(std::move(plot));
  }

  void parse_plot_line(const Compiler& compiler, const std::vector<std::string_view>& words,
                       Plot& plot, VariableNames& variables) {
    if (words[0] == "let" && words.size() == 4 && words[2] == "=") {
      const ByWorld classes = compiler.find_class(words[3]);
      for (int world = 0; world < kNumWorlds; ++world) {
        check_text(!plot.worlds[world] || classes[world] != kNowhere, "no class ", words[3]);
      }
      plot.variables.push_back({static_cast<uint32_t>(variables.size()), classes});
      variables.push_back({std::string(words[1]), classes});
    } else if (words[0] == "elder" && words.size() == 2) {
      set_elders(compiler, plot, words[1]);
    } else {
      const bool optional = words[0] == "maybe";
      const bool paragraph = words.back() == "paragraph";
      check_text(optional || paragraph || words[0] == "beat", "unknown line in ", plot.name, ": ",
                 words[0]);
      plot.beats.push_back({optional, paragraph, {plot.name, {}, 0}});
    }
  }

  void set_elders(const Compiler& compiler, Plot& plot, std::string_view prefix) {
    for (int she = 0; she < 2; ++she) {
      const std::string name = std::string(prefix) + (she ? "_she" : "_he");
      for (int world = 0; world < kNumWorlds; ++world) {
        if (plot.worlds[world])
          plot.elder_classes[she][world] = find_class(compiler, name, World(world));
      }
    }
  }

  void add_variant(const Compiler& compiler, std::string_view line, Variants& variants) {
    check_text(line.starts_with("- "), "expected a variant, got ", line);
    variants.programs.push_back(compiler.compile(line.substr(2)));
  }

  Book book_;
};

// Every slot that a plot can reach must mean something in each of the plot's worlds.
void check_reachable(const Book& book, const Program& program, int world, std::string_view plot) {
  for (const Op& op : program) {
    if (op.kind < Op::kWord) continue;
    check_text(op.index[world] != kNowhere, "plot ", plot, " uses what world ", world, " lacks");
    if (op.kind != Op::kPool && op.kind != Op::kChoice) continue;
    const auto& variants = (op.kind == Op::kPool ? book.pools : book.choices)[op.index[world]];
    for (const Program& inner : variants.programs) check_reachable(book, inner, world, plot);
  }
}

void check_reachable(const Book& book) {
  for (const Plot& plot : book.plots) {
    for (int world = 0; world < kNumWorlds; ++world) {
      for (const Beat& beat : plot.beats) {
        if (!plot.worlds[world]) continue;
        for (const Program& program : beat.variants.programs) {
          check_reachable(book, program, world, plot.name);
        }
      }
    }
  }
}

}  // namespace

Book parse_book(std::span<const std::string_view> lexicon, std::span<const std::string_view> book) {
  Book parsed = BookParser(lexicon).parse(book);
  check_text(!parsed.plots.empty(), "no plots");
  check_reachable(parsed);
  return parsed;
}

const Book& story_book() {
  static const Book book = parse_book(lexicon_texts(), book_texts());
  return book;
}

}  // namespace flashstep
