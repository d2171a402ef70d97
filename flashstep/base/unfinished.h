// The files that this process has begun and not finished: those that a signal's handler removes.
#pragma once

namespace flashstep {

// Keeps a name in mind while it lives. What finds no place (there are 64) is not removed.
class Unfinished {
 public:
  explicit Unfinished(const char* path);
  ~Unfinished();
  Unfinished(const Unfinished&) = delete;
  Unfinished& operator=(const Unfinished&) = delete;

  // Removes them all; true if there were any. For a handler (async-signal-safe) of a process that
  // ends.
  static bool remove_all();

 private:
  char* path_;
  int place_ = -1;
};

}  // namespace flashstep
