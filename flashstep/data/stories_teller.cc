#include "flashstep/data/stories_teller.h"

#include <algorithm>
#include <string_view>

#include "flashstep/data/stories_inflect.h"

namespace flashstep {
namespace {

void capitalize(std::string& text, size_t at) {
  if (at < text.size() && text[at] >= 'a' && text[at] <= 'z') text[at] -= 'a' - 'A';
}

}  // namespace

StoryTeller::StoryTeller(const Book& book)
    : book_(book), used_words_(book.lexicon.num_words), used_passages_(book.num_pool_programs) {}

void StoryTeller::tell(uint64_t seed, uint64_t index, std::string& text) {
  rng_ = Rng(seed, index);
  text_ = &text;
  used_words_.clear();
  used_passages_.clear();
  plot_ = &book_.plots[rng_.below(book_.plots.size())];
  world_ = plot_->worlds[kChildWorld] ? kChildWorld : kAnimalWorld;
  if (plot_->worlds[kChildWorld] && plot_->worlds[kAnimalWorld]) world_ = World(rng_.below(2));
  draw_cast(*plot_, world_, rng_, cast_);
  draw_variables();
  const size_t start = text.size();
  for (const Beat& beat : plot_->beats) {
    if (beat.optional && rng_.below(2) == 0) continue;
    const size_t joint = text.size();
    if (joint > start) text += beat.paragraph ? "\n\n" : " ";
    run(beat.variants.programs[rng_.below(beat.variants.programs.size())]);
    // Where speech follows speech, the speaker has changed.
    if (joint > start && !beat.paragraph && text[joint - 1] == '"' && text[joint + 1] == '"') {
      text.replace(joint, 1, "\n\n");
    }
  }
}

void StoryTeller::draw_variables() {
  variables_.clear();
  for (const auto& [variable, classes] : plot_->variables) {
    const WordClass& words = book_.lexicon.classes[classes[world_]];
    variables_.push_back({&words, draw_unused(words.first_word, words.size(), used_words_)});
  }
}

// Uniform, then on to the next that is unused; the drawn one when all are used.
uint32_t StoryTeller::draw_unused(uint32_t first, uint32_t count, Used& used) {
  const auto drawn = static_cast<uint32_t>(rng_.below(count));
  uint32_t chosen = drawn;
  while (used.test(first + chosen)) {
    chosen = chosen + 1 == count ? 0 : chosen + 1;
    if (chosen == drawn) break;
  }
  used.set(first + chosen);
  return chosen;
}

void StoryTeller::run(const Program& program) {
  std::string& text = *text_;
  for (size_t i = 0; i < program.size(); ++i) {
    if (program[i].kind != Op::kArticle) {
      run(program[i]);
      continue;
    }
    const size_t after_article =
        text.size();  // "a" stands before it, a space and the next word after it
    text += ' ';
    run(program[++i]);
    if (takes_an(std::string_view(text).substr(after_article + 1)))
      text.insert(after_article, 1, 'n');
  }
}

void StoryTeller::run(const Op& op) {
  std::string& text = *text_;
  const size_t start = text.size();
  switch (op.kind) {
    case Op::kText:
      text += op.text;
      return;
    case Op::kArticle:  // consumed by run(Program)
      return;
    case Op::kRole:
    case Op::kClearRole:
      add_role(op);
      break;
    case Op::kWord: {
      const WordClass& words = book_.lexicon.classes[op.index[world_]];
      text += words.form(draw_unused(words.first_word, words.size(), used_words_), op.form[world_]);
      break;
    }
    case Op::kVariable: {
      const auto& [words, word] = variables_[op.index[world_]];
      text += words->form(word, op.form[world_]);
      break;
    }
    case Op::kPool: {
      const Variants& pool = book_.pools[op.index[world_]];
      const auto count = static_cast<uint32_t>(pool.programs.size());
      run(pool.programs[draw_unused(pool.first_program, count, used_passages_)]);
      break;
    }
    case Op::kChoice: {
      const auto& programs = book_.choices[op.index[world_]].programs;
      run(programs[rng_.below(programs.size())]);
      break;
    }
  }
  if (op.capital) capitalize(text, start);
}

void StoryTeller::add_role(const Op& op) {
  const Character& character = cast_[op.role];
  uint32_t form = op.form[0];
  if (op.kind == Op::kClearRole) {
    const Character& other = cast_[op.role == kHero ? kFriend : kHero];
    if (other.is_she == character.is_she) form = form == kHis ? kNames : kName;
  }
  *text_ += character.forms[form];
}

}  // namespace flashstep
