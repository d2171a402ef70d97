// Makes one system call of a program fail, be cut short, or be the last thing it does. Linked to a
// test, or preloaded before a program (LD_PRELOAD). Calls are counted that concern files under one
// folder.
//
// As a preload: FLASHSTEP_FAULT="FOLDER|FUNCTION|N|WHAT[|sticky]", for example
// "/tmp/run|fsync|3|ENOSPC": the third fsync below /tmp/run fails. FUNCTION is write (also pwrite),
// fsync (also fdatasync), rename, ftruncate, open (only where it creates), mkdir, remove (unlink,
// rmdir) or any. WHAT is an error, SHORT (writes half), KILL (SIGKILL before the call) or STOP
// (SIGSTOP before the call). sticky: all later ones as well.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

enum { kShort = -1, kKill = -2, kStop = -3 };

static char folder[PATH_MAX], function[32];
static long nth, count;
static int what, is_sticky, has_fired;

// Arms the fault: `n` counts from 1; `error` is an errno, kShort or kKill. n == 0 disarms.
void flashstep_fault(const char* under, const char* name, long n, int error, int sticky) {
  snprintf(folder, sizeof folder, "%s", under);
  snprintf(function, sizeof function, "%s", name);
  nth = n;
  what = error;
  is_sticky = sticky;
  count = has_fired = 0;
}

int flashstep_fault_fired(void) { return has_fired; }

static char* trace_buffer;
static size_t trace_size;

// From now on writes a line into `buffer` for each call below `under`: "fsync /path". NULL: no
// more.
void flashstep_fault_trace(const char* under, char* buffer, size_t size) {
  flashstep_fault(under, "none", buffer == NULL ? 0 : 1, 0, 0);
  trace_buffer = buffer;
  trace_size = size;
  if (buffer != NULL) buffer[0] = '\0';
}

__attribute__((constructor)) static void arm_from_environment(void) {
  const char* text = getenv("FLASHSTEP_FAULT");
  char under[PATH_MAX], name[32], error[32], sticky[32] = "";
  long n = 0;
  if (text == NULL) return;
  if (sscanf(text, "%4095[^|]|%31[^|]|%ld|%31[^|]|%31s", under, name, &n, error, sticky) < 4)
    return;
  const int number = strcmp(error, "ENOSPC") == 0  ? ENOSPC
                     : strcmp(error, "EIO") == 0   ? EIO
                     : strcmp(error, "SHORT") == 0 ? kShort
                     : strcmp(error, "STOP") == 0  ? kStop
                                                   : kKill;
  flashstep_fault(under, name, n, number, sticky[0] != '\0');
}

// 0: go on; kShort: write half; otherwise the errno to fail with.
static int fault(const char* name, const char* path) {
  if (nth == 0 || strncmp(path, folder, strlen(folder)) != 0) return 0;
  if (trace_buffer != NULL) {
    const size_t used = strlen(trace_buffer);
    snprintf(trace_buffer + used, trace_size - used, "%s %s\n", name, path);
  }
  if (strcmp(function, name) != 0 && strcmp(function, "any") != 0) return 0;
  ++count;
  if (count < nth || (count > nth && !is_sticky)) return 0;
  has_fired = 1;
  if (what == kKill) kill(getpid(), SIGKILL);
  if (what == kStop) kill(getpid(), SIGSTOP);  // and goes on when somebody continues it
  return what;
}

static int descriptor_fault(const char* name, int descriptor) {
  char link[64], path[PATH_MAX];
  if (nth == 0) return 0;
  snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
  const ssize_t length = readlink(link, path, sizeof path - 1);
  if (length < 0) return 0;
  path[length] = '\0';
  return fault(name, path);
}

#define REAL(type, name, ...)       \
  static type (*real)(__VA_ARGS__); \
  if (real == NULL) real = (type(*)(__VA_ARGS__))dlsym(RTLD_NEXT, name)
#define FAIL_IF(expression)          \
  do {                               \
    const int number = (expression); \
    if (number > 0) {                \
      errno = number;                \
      return -1;                     \
    }                                \
  } while (0)

ssize_t write(int descriptor, const void* data, size_t size) {
  REAL(ssize_t, "write", int, const void*, size_t);
  const int error = descriptor_fault("write", descriptor);
  FAIL_IF(error);
  return real(descriptor, data, error == kShort && size > 1 ? size / 2 : size);
}

ssize_t pwrite(int descriptor, const void* data, size_t size, off_t offset) {
  REAL(ssize_t, "pwrite", int, const void*, size_t, off_t);
  const int error = descriptor_fault("write", descriptor);
  FAIL_IF(error);
  return real(descriptor, data, error == kShort && size > 1 ? size / 2 : size, offset);
}

int fsync(int descriptor) {
  REAL(int, "fsync", int);
  FAIL_IF(descriptor_fault("fsync", descriptor));
  return real(descriptor);
}

int fdatasync(int descriptor) {
  REAL(int, "fdatasync", int);
  FAIL_IF(descriptor_fault("fsync", descriptor));
  return real(descriptor);
}

int ftruncate(int descriptor, off_t size) {
  REAL(int, "ftruncate", int, off_t);
  FAIL_IF(descriptor_fault("ftruncate", descriptor));
  return real(descriptor, size);
}

int rename(const char* from, const char* to) {
  REAL(int, "rename", const char*, const char*);
  FAIL_IF(fault("rename", to));
  return real(from, to);
}

int mkdir(const char* path, mode_t mode) {
  REAL(int, "mkdir", const char*, mode_t);
  FAIL_IF(fault("mkdir", path));
  return real(path, mode);
}

int unlink(const char* path) {
  REAL(int, "unlink", const char*);
  FAIL_IF(fault("remove", path));
  return real(path);
}

int rmdir(const char* path) {
  REAL(int, "rmdir", const char*);
  FAIL_IF(fault("remove", path));
  return real(path);
}

int unlinkat(int directory, const char* path, int flags) {
  REAL(int, "unlinkat", int, const char*, int);
  FAIL_IF(path[0] == '/' || directory == AT_FDCWD ? fault("remove", path)
                                                  : descriptor_fault("remove", directory));
  return real(directory, path, flags);
}

int open(const char* path, int flags, ...) {
  REAL(int, "open", const char*, int, ...);
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = (flags & O_CREAT) != 0 ? va_arg(arguments, mode_t) : 0;
  va_end(arguments);
  if ((flags & O_CREAT) != 0) FAIL_IF(fault("open", path));
  return real(path, flags, mode);
}
